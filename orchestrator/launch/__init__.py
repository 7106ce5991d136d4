"""Launching a sweep: its options, the checks before any worker starts, and the start."""
