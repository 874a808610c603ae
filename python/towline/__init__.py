"""Towline: one HTTP engine with three faces."""
