"""What a run reports: its speed, its figures, and advice."""
