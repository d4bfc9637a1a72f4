"""Reasons why a job is pending, as sentences and tokens."""
