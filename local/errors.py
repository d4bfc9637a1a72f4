"""Error of a local server that does not start, with what to do about it."""


class EmbeddedServerError(RuntimeError):
    """One of the local servers could not be found, started or stopped."""
