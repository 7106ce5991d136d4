"""The one transformer, the VQ codec, weights and model families."""
