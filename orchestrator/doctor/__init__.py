"""What this machine and a set of checkpoints can do, and what a sweep would need."""
