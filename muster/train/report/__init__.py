"""Reports of a run: its speed, its figures, and advice."""
