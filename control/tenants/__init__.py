"""Tenants with their keys, persons, sessions and quotas."""
