"""The search for the place of one gang."""
