"""Detectors, from signals to findings: a file a rule, pure, without I/O, the same in agent, server and simulation."""
