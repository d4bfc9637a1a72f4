"""States of the build of an environment, which all jobs of a tenant with the same lock and kind of host share."""

from enum import StrEnum


class BuildState(StrEnum):
    """``WAITING``: no host builds it. ``FAILED``: the lock is the tenant's to fix."""

    WAITING = "waiting"
    BUILDING = "building"
    BUILT = "built"
    FAILED = "failed"
