"""Measured claims: each module prints a table that the docs quote."""

import sys

from workers.runtime.process import keep_freed_memory, use_threads

# as for commands; a process that has torch, such as a test, has its own threads
if "torch" not in sys.modules:
    use_threads()
    keep_freed_memory()
