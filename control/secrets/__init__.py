"""Tenants' secrets: stored as envelopes under keys from outside the database, and read by hosts alone."""
