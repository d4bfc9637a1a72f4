"""Use cases of the watch: reports of stalled attempts, verdicts, and what follows from them."""
