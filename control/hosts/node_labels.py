"""Labels of a node, which operators set.

A placement locks GPUs before it reads labels, and a change of labels locks the node's GPUs: either the commit sees it,
or it comes after the commit and moves no job.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.fleet.gpu_locks import lock_gpus
from control.fleet.node_names import find_node
from control.hosts.read import NodeDetail, detail_of
from muster.db.models import Gpu
from muster.domain.errors import ValidationFailedError
from muster.domain.gpu.rails import RAILS_LABEL, rails_of_label
from muster.domain.principals import Permission

LABEL: Final = declare_action("node.label")
MOST_LABELS: Final = 64


def set_labels(
    unit: UnitOfWork, text: str, labels: Mapping[str, str], *, remove: Sequence[str] = (), reason: str
) -> NodeDetail:
    """Set some labels of the node whose id or name is ``text``, and remove others. Running jobs stay.

    Raises:
        NotFoundError: there is no such node.
        ValidationFailedError: a label is set and removed, a node would have too many, or its `rails` are none.
    """
    unit.principal.require(Permission.NODE_WRITE)
    if both := sorted(set(labels) & set(remove)):
        raise ValidationFailedError.at("/remove", "also_set", f"these labels are set as well: {', '.join(both)}")
    _require_rails(labels)
    node = find_node(unit, text)
    unit.session.refresh(node, with_for_update={"key_share": True})
    kept = {name: value for name, value in node.labels.items() if name not in remove}
    after = dict(sorted({**kept, **labels}.items()))
    if len(after) > MOST_LABELS:
        detail = f"a node has {MOST_LABELS} labels at most; it would have {len(after)}"
        raise ValidationFailedError.at("/labels", "too_many", detail)
    if after != node.labels:
        lock_gpus(unit, unit.session.scalars(select(Gpu.uuid).where(Gpu.node_id == node.id)).all())
        told = {"from": node.labels, "to": after, "reason": reason}
        node.labels = after
        unit.emit("node.labelled", "node", node.id, payload=told)
        unit.audit("node.label", "node", node.id, reason=reason, detail=told)
        unit.wake(SCHEDULER_CHANNEL)
    return detail_of(unit, node.id)


def _require_rails(labels: Mapping[str, str]) -> None:
    """Refuse a `rails` label that the planner could not read."""
    if RAILS_LABEL not in labels:
        return
    try:
        rails_of_label(labels[RAILS_LABEL])
    except ValueError as error:
        raise ValidationFailedError.at(f"/labels/{RAILS_LABEL}", "bad_rails", str(error)) from error
