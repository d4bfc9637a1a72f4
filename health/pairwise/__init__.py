"""Checks between hosts: all-gathers of small groups, and probes between racks."""
