"""How well the detectors find faults in a fleet's simulated weeks."""
