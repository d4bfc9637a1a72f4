"""Storage of checkpoints: a folder or an object store, with the same guarantees."""
