"""Captions, shards, records and the procedural scenes."""
