"""Remedies: which one a fault needs, and whether an agent or a person starts it."""
