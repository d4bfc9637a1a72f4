"""Stragglers: ranks that compute longer than their peers, which wait for them. Pure."""
