"""Proof that nothing of an attempt is left on its host."""
