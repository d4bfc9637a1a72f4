"""A deterministic world in which the pure protocol core lives through faults, the invariants watched at every step.

The same functions run here as in the services and in the launcher; only wires, disks, clocks and processes are
simulated. One seed is one history: ``python -m simulator --trace SEED`` tells it again.
"""
