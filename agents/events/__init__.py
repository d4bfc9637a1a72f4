"""Events in addition to samples: states when they change, counters when they rise."""
