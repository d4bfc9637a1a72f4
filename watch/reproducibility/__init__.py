"""Comparison of two records of a training program: the first step that differs, the tensor, and why."""
