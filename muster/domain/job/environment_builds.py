"""Builds of environments, which all jobs of a tenant with the same lock and kind of host share, and their hosts."""

from dataclasses import dataclass
from enum import StrEnum


class BuildState(StrEnum):
    """``WAITING``: no host builds it. ``FAILED``: the lock is the tenant's to fix."""

    WAITING = "waiting"
    BUILDING = "building"
    BUILT = "built"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PackageHosts:
    """``num_hosts``: hosts in contact that build environments. ``num_for_source``: and source distributions too."""

    num_hosts: int
    num_for_source: int

    def fault(self, *, allows_source: bool) -> str | None:
        """Return why hosts cannot build an environment, or not all of it; None: as far as is known, they can.

        ``allows_source``: the job lets them build source distributions.
        """
        if self.num_hosts == 0:
            return (
                "no host builds environments: none in contact has a package index or a wheelhouse, so the job would be"
                " held; ask the operator for one, or use an image or the hosts' Python"
            )
        if allows_source and self.num_for_source == 0:
            return (
                "no host builds source distributions: the job would be held; ask the operator"
                " (`source_builds`), or leave `allows_source` out if the lock has wheels alone"
            )
        return None
