"""From findings to evidence: what is merged, indexed, repeated and suppressed."""
