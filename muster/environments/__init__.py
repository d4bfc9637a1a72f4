"""Python environments of jobs by lock file: read, built once, stored as content, and assembled on each host."""
