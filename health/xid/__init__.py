"""What the driver's XID codes mean: the catalogue (data), and the recovery action that the driver itself asks for."""
