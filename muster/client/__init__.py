"""Typed clients of the REST API: for hosts (``host``), and for people and programs (``rest``)."""
