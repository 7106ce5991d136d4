"""Slow reference implementations, written from the formulas."""
