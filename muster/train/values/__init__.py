"""Values of the training: finite, without spikes, and alike on all ranks that hold copies of them."""
