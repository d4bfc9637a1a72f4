"""What can go wrong before a server answers, each with what to do about it."""


class EmbeddedServerError(RuntimeError):
    """A server of ours could not be found, started or stopped."""
