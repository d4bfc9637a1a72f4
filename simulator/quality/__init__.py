"""Quality of fault detection over a fleet's simulated weeks."""
