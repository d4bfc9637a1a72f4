"""The control plane is killed at each failpoint on the way of a place: given, taken back, changed, come free."""
