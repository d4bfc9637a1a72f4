"""Notifications: which events a route takes, what is sent of them, and when a try is repeated. Pure."""
