"""Jobs and attempts: rows through the pure state machines, and the orders of hosts."""
