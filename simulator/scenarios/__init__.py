"""Situations that a person poses: a fleet, what runs and waits, what happens; and what the planner decides."""
