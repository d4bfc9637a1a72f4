"""The standing of a GPU: moves, breaker, admission, and what persons set."""
