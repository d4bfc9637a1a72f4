"""Effects of a change that is only tried: the jobs that it hits, where each continues, the capacity that is left."""
