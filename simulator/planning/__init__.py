"""The real scheduler in the simulated world: its rules there, its input, and the commits of its plans."""
