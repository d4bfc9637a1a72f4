"""Commands on jobs, their checkpoints, datasets and runs."""
