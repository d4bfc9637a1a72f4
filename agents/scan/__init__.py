"""``muster agent scan``: this host looked at twice and judged."""
