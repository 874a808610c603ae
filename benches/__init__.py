"""Measurements around `towline bench`: memory, latency of callbacks, checks of the bench itself, README's figures."""
