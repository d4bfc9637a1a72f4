"""Errors of environments. Each text names the line or package, the fault, and what to do."""


class EnvironmentFaultError(Exception):
    """An environment cannot be built or used on this host; the subclasses blame lock or index instead.

    ``line``: of the lock file, from 1 on; None if no line is the cause.
    """

    def __init__(self, text: str, *, line: int | None = None) -> None:
        super().__init__(text)
        self.line = line


class LockFaultError(EnvironmentFaultError):
    """A lock file is not one, or names what cannot be installed from an index by hash: the tenant's to fix."""


class BuildFaultError(EnvironmentFaultError):
    """The installer refused: a wrong hash, no wheel for this platform, a package that the index lacks."""


class IndexFaultError(EnvironmentFaultError):
    """The package index does not answer, or the installer was ended: a later try may succeed."""
