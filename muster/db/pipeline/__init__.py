"""Statements in one round trip: libpq's pipeline mode, batches, and answers as JSON."""
