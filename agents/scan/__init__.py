"""Scan of a host, ``muster agent scan``: two checks, and their judgement."""
