"""Hosts that build environments, as their heartbeats say."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from muster.db.models import Node
from muster.domain.job.environment_builds import PackageHosts
from muster.domain.states import Contact
from muster.wire.host import PACKAGES, SOURCE_PACKAGES


def package_hosts(session: Session) -> PackageHosts:
    """Count the hosts in contact that build environments."""
    builds_source = Node.capabilities.contains([SOURCE_PACKAGES])
    counts = select(func.count(), func.count().filter(builds_source))
    is_one = (Node.contact == Contact.LIVE) & Node.capabilities.contains([PACKAGES])
    return PackageHosts(*session.execute(counts.where(is_one)).one())
