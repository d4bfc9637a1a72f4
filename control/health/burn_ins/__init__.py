"""Burn-ins: ordered, given to a node's agent, measured there, judged here."""
