"""Commands on the fleet as a whole."""
