"""The control plane is killed at each failpoint in the life of a place: given, taken back, changed, free again."""
