"""What only a GPU can show, in parts: see `python -m benchmarks.gpu --help`."""
