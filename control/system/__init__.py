"""The control plane itself: its figures, its retention, and its return from a backup."""
