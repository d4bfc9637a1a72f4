"""Reports of a job's ranks: progress, checkpoints and saves that failed."""
