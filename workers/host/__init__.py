"""The run side of a GPU host: the launcher claims attempts, supervisors run them and outlive it."""
