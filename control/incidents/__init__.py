"""Incidents: what needs a person, opened and closed by rules."""
