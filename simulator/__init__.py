"""A deterministic world in which the pure protocol core meets faults; the invariants are checked at every step.

The same functions run here as in the services and in the launcher; only wires, disks, clocks and processes are
simulated. One seed is one history: ``python -m simulator --trace SEED`` prints it event by event.
"""
