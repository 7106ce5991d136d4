"""Drafting, verifying, accepting and committing: the speculative decoding engine."""
