"""Checkpoints of a training run: what is in them, when they are saved, and how they are restored."""
