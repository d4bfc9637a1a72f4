"""Progress of the ranks of one host: how long each phase usually takes, and when it is overdue."""
