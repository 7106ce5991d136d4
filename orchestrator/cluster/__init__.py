"""Workers on the machines of a Ray cluster: where they run, and the tasks that they are given."""
