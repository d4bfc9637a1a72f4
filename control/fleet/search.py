"""Search of a GPU, a node or a job by its id, its name or a part of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import or_, select

from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import visible_rows
from muster.db.models import Gpu, Job, Node
from muster.db.queries.effective_standing import effective_standing
from muster.domain.principals import Permission

READ: Final = declare_action("find.read")
SHORTEST: Final = 2


@dataclass(frozen=True, slots=True)
class SearchHit:
    kind: Literal["gpu", "node", "job"]
    id: str
    name: str
    state: str


def search(unit: UnitOfWork, text: str, *, limit: int) -> Sequence[SearchHit]:
    """Return the whole id alone where one fits; else jobs, nodes and GPUs with ``text`` in name or id, a few of each.

    A tenant finds its own jobs. Text of fewer than two characters finds nothing.
    """
    unit.principal.require(Permission.JOB_READ)
    text = text.strip()
    if len(text) < SHORTEST or "\x00" in text:
        return []
    found = [*_jobs(unit, text, limit), *_nodes(unit, text, limit), *_gpus(unit, text, limit)]
    exact = [one for one in found if text in {one.id, one.name}]
    return exact if len(exact) == 1 else found[:limit]


def _jobs(unit: UnitOfWork, text: str, limit: int) -> list[SearchHit]:
    query = select(Job.id, Job.name, Job.state).where(
        or_(Job.id == text, Job.id.endswith(text, autoescape=True), Job.name.icontains(text, autoescape=True)),
        visible_rows(unit.principal, Job.tenant_id),
    )
    rows = unit.session.execute(query.order_by(Job.created_at.desc()).limit(limit))
    return [SearchHit("job", job_id, name, state) for job_id, name, state in rows]


def _nodes(unit: UnitOfWork, text: str, limit: int) -> list[SearchHit]:
    if not unit.principal.may(Permission.NODE_READ):
        return []
    query = select(Node.id, Node.name, Node.contact).where(
        or_(Node.id == text, Node.name.icontains(text, autoescape=True))
    )
    rows = unit.session.execute(query.order_by(Node.name).limit(limit))
    return [SearchHit("node", node_id, name, contact) for node_id, name, contact in rows]


def _gpus(unit: UnitOfWork, text: str, limit: int) -> list[SearchHit]:
    if not unit.principal.may(Permission.GPU_READ):
        return []
    query = select(Gpu.uuid, effective_standing(unit.now)).where(
        or_(
            Gpu.uuid == text,
            Gpu.serial == text,
            Gpu.uuid.startswith(text, autoescape=True),
            Gpu.uuid.endswith(text, autoescape=True),
        )
    )
    rows = unit.session.execute(query.order_by(Gpu.uuid).limit(limit))
    return [SearchHit("gpu", uuid, uuid, standing) for uuid, standing in rows]
