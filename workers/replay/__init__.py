"""Replay: acceptance rules applied to recorded decoding steps, without a model."""
