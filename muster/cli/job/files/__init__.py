"""Jobs in files: read with variables and options, written from a job, submitted again."""
