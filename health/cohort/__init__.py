"""GPUs compared with others: cohorts, drift, peers of one gang."""
