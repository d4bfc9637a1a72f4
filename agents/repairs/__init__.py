"""Repairs that the agent does: a closed list of verbs, one at a time, each told to the control plane."""
