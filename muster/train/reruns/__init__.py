"""Re-runs of suspect steps: the same steps with the same data and random numbers, compared with the first time."""
