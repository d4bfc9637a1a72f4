"""The spool: reports wait on disk until the server has acknowledged them."""
