"""Commands of the simulator and of simulated GPUs."""
