"""The standing of a GPU: moves, breaker, admission, and overrides by persons."""
