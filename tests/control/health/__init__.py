"""The judge on a real database."""
