"""Outputs of jobs: set aside at the end of an attempt, copied at its checkpoints, and uploaded by a process apart."""
