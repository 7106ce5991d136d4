"""Replay: acceptance rules walked over recorded decoding steps, without a model."""
