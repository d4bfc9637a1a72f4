"""Re-runs of suspect steps: the judgement of results of the same steps, on the same and on other GPUs."""
