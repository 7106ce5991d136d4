"""The command line: `specfrontier generate`, `train` and `doctor`."""
