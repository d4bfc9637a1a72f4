"""The life of jobs and attempts: rows through the pure state machines, and what hosts are ordered to do."""
