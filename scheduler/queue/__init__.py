"""In what order jobs are tried, and what each that does not start is told."""
