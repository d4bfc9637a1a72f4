"""Which attempts give GPUs back, and with what notice."""
