"""A worker process: its specification, its engines, timing, memory and logs."""
