"""Commands about what jobs cost."""
