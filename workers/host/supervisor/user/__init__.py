"""The user that a job's program runs as, and its secrets."""
