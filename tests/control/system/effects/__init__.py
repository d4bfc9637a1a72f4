"""Effects of changes that are only tried."""
