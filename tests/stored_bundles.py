"""Bundles that the control plane knows as uploaded, for jobs of tests."""

from control.content import bundles
from control.content.manifests import reading_of
from control.core.unit_of_work import UnitOfWorkFactory
from muster.domain.principals import Principal


def store_bundle(units: UnitOfWorkFactory, tenant: Principal, manifest: bytes) -> str:
    """Begin a bundle by its manifest and confirm all of it; return its digest. Nothing is sent to a store."""
    reading = reading_of(manifest)
    with units.begin(tenant, bundles.BEGIN) as unit:
        wanted = [each.digest for each in bundles.begin(unit, reading).wanted]
    while wanted:
        with units.begin(tenant, bundles.CONFIRM, quiet=True) as unit:
            wanted = [each.digest for each in bundles.confirm(unit, reading.digest, wanted).wanted]
    return reading.digest
