"""One training run from its start to its exit code."""
