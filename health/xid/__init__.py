"""Meaning of the driver's XID codes: the catalogue (data), and the recovery action that the driver itself requests."""
