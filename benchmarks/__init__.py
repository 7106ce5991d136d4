"""Measured claims: each module prints a table that the docs quote."""

import sys

from workers.runtime.allocator import keep_freed_memory
from workers.runtime.threads import use_threads

if "torch" not in sys.modules:  # as for commands; a process that has torch, such as a test, has its own threads
    use_threads()
    keep_freed_memory()
