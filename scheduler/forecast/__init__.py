"""Start ranges of pending jobs, by a forward simulation of the queue."""
