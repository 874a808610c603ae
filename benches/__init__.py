"""Measurements around `towline bench`: memory, latency of callbacks, checks of the bench itself, the tables of docs/figures.md."""
