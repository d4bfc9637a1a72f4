"""Situations that a person describes: a fleet, running and pending jobs, events; and the planner's decisions."""
