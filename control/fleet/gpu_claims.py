"""Two hosts that claim one GPU: the second is refused, and an incident names both.

A board that was moved without its old host's knowledge causes that, and so does a cloned disk; only a person on site
can find out which host has it. One incident a GPU; a person closes it, and it opens again as long as the claim is made.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.fleet.gpu_locks import lock_gpus
from control.incidents import incidents
from muster.db.models import Gpu, Node
from muster.domain.errors import ConflictError
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import GpuUuid
from muster.domain.principals import Principal

REPORT_CLAIM: Final = declare_action("gpu.claimed_twice")
KIND: Final = IncidentKind.GPU_CLAIMED_TWICE


class GpuClaimedError(ConflictError):
    """A host reports GPUs that are enrolled on another. ``gpu_uuids`` names them."""

    def __init__(self, detail: str, *, suggestion: str, gpu_uuids: Sequence[str], **extra: Any) -> None:
        super().__init__(detail, suggestion=suggestion, gpu_uuids=list(gpu_uuids), **extra)
        self.gpu_uuids = tuple(gpu_uuids)


def report_claim(units: UnitOfWorkFactory, principal: Principal, claimed: GpuClaimedError, claimant: str) -> None:
    """Open the incident in a unit of its own: the refusal has left nothing.

    ``claimant``: name or id of the second host.
    """

    def once() -> None:
        with units.begin(principal, REPORT_CLAIM, quiet=True) as unit:
            _open_for(unit, claimed, claimant)

    retrying(once)


def _open_for(unit: UnitOfWork, claimed: GpuClaimedError, claimant: str) -> None:
    gpus = lock_gpus(unit, [GpuUuid(uuid) for uuid in claimed.gpu_uuids])
    told = {found.subject_id for found in incidents.open_about(unit, KIND, [gpu.uuid for gpu in gpus])}
    name = unit.session.scalar(select(Node.name).where(Node.id == claimant)) or claimant
    for gpu in gpus:
        if gpu.uuid not in told:
            _open(unit, gpu, name)


def _open(unit: UnitOfWork, gpu: Gpu, claimant: str) -> None:
    owner = unit.session.get_one(Node, gpu.node_id).name
    payload = {
        "gpu_uuid": gpu.uuid,
        "enrolled_on": owner,
        "node_id": gpu.node_id,
        "claimed_by": claimant,
        "to_do": "See which host has the board. Where it was moved, retire it on the old one and enrol the new one "
        "again; where a disk was cloned, delete node_key and identity.json in the clone's state folder, and enrol it.",
    }
    summary = f"{gpu.uuid} is enrolled on {owner}, and {claimant} claims it too"
    incidents.open_incident(unit, KIND, "gpu", gpu.uuid, summary, payload)
