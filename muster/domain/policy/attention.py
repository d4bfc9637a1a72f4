"""How long a state may last before it needs the attention of a person."""

from typing import Annotated

from pydantic import Field

from muster.domain.strict import StrictModel

Wait = Annotated[float, Field(ge=0, le=30 * 86_400, strict=False)]


class AttentionPolicy(StrictModel):
    """The times after which a state opens an incident. It closes with the state, or as soon as a person acts."""

    remedy_due_after_s: Wait = Field(
        3600.0,
        description="A GPU has been QUARANTINED or SUSPECT for so long without a repair. A remedy is due, or "
        "nothing names one. Where rules start repairs "
        "(`health.repair.starts_by_rule`), a GPU that only a person can repair does not wait for it.",
    )
    job_on_hold_after_s: Wait = Field(
        0.0, description="A job has been HELD for so long, without a release or a cancel."
    )
    node_lost_after_s: Wait = Field(
        900.0,
        description="A node has been LOST without a heartbeat for so long. A cordon, drain or maintenance by a person "
        "on the node shows that a person acts.",
    )
    lost_together_s: Wait = Field(
        120.0,
        description="Nodes whose heartbeats ended with no longer pauses than this between them were lost together. "
        "Where half of a rack, or two racks of a wider domain, were, one incident names the domain and its nodes.",
    )
