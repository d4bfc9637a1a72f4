"""The simulated world: hosts, network, server, faults, invariants, planted bugs."""
