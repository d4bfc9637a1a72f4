"""The node: its GPUs together, its host and its neighbours."""
