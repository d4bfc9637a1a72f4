"""The real scheduler in the simulated world: what it goes by there, what it is asked, and what becomes of its plans."""
