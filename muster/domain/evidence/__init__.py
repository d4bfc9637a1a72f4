"""Findings about GPUs, incidents and repairs."""
