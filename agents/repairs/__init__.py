"""Repairs that the agent does: a closed list of verbs, one at a time, each reported to the control plane."""
