"""Drafters: what proposes the tokens that the target verifies."""
