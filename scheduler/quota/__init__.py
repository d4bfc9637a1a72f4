"""Tenants as a tree, and what their quotas allow now and later."""
