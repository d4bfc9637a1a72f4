"""Effects of a change that is only tried: the jobs that it hits, where each goes on, and the capacity that is left."""
