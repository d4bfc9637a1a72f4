"""What a job's ranks report: progress, checkpoints and saves that failed."""
