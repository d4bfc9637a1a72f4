"""Log lines of running jobs: which fault a line is about, and which part it has in it. Pure."""
