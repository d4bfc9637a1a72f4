"""From signals to findings: one file a rule, pure and without I/O, the same in agent, server and simulation."""
