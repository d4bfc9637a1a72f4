"""Changes of all objects that a selector matches, as the API accepts and answers them."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Moment, OneOf
from muster.domain.states import Contact, JobState


class NodeSelector(TypedDict, total=False):
    """Conditions on nodes; all of them hold, and at least one is given."""

    contact: list[Annotated[str, OneOf(Contact)]] | None
    name: str | None
    rack: str | None
    label: list[str] | None
    tenant_id: str | None
    tier: str | None
    cordoned: bool | None


class JobSelector(TypedDict, total=False):
    """Conditions on jobs; all of them hold, and at least one is given."""

    state: list[Annotated[str, OneOf(JobState)]] | None
    tenant_id: str | None
    name: str | None
    tier: str | None
    job_class: str | None
    label: list[str] | None
    node: str | None
    rack: str | None
    since: Moment | None
    until: Moment | None


class BulkChange(TypedDict):
    reason: str
    expected: NotRequired[int | None]
    after: NotRequired[str | None]
    limit: NotRequired[int]


class NodesChange(BulkChange):
    selector: NodeSelector


class NodesCordon(NodesChange):
    until: NotRequired[Moment | None]


class NodesDrain(NodesChange):
    until: NotRequired[Moment | None]
    deadline_s: NotRequired[float | None]
    despite_budget: NotRequired[str | None]


class JobsChange(BulkChange):
    selector: JobSelector


class BulkItem(TypedDict):
    """What became of one object. ``code``, ``why``: of its refusal; null if it is changed."""

    id: str
    name: str
    outcome: Literal["changed", "refused"]
    code: str | None
    why: str | None


class BulkAnswer(Trial):
    """What became of all objects that match.

    ``num_matched``: how many were to be changed, before this request. ``num_unchanged``: how many others match, which
    need no change. ``num_left``: how many are to be changed by the next request, after ``next_after``; null: none.
    """

    num_matched: int
    num_changed: int
    num_refused: int
    num_unchanged: int
    num_left: int
    next_after: str | None
    items: list[BulkItem]
