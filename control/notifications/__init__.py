"""Notifications: routes of operators and tenants, one notification for each event of a route, and their delivery."""
