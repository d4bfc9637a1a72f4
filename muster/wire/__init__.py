"""Versioned messages between hosts and the control plane (msgspec: strict, fast, no database types)."""
