"""Verdicts on running jobs, as the API gives them."""

from typing import Annotated

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Moment, OneOf, Page
from muster.domain.job.verdicts import VerdictKind, VerdictReaction, VerdictState


class CodeFrame(TypedDict):
    """A place in a program. ``line`` is 0 where it is not known."""

    function: str
    file: str
    line: int


class Verdict(TypedDict):
    """A verdict. ``sentence``: rank, host, GPU, operation, frame and line in one sentence.

    ``ranks``: the ranks that caused it, the likeliest first. ``evidence``: the lines on which it rests. ``reaction``:
    what followed from it. ``last_step`` and ``ended_at``: of a straggler, the newest step in which it was slow, and
    since when it is not; null otherwise. ``burn_in_id``: the burn-in of a GPU that re-runs name. ``burn_in_note``: why
    none is ordered, or why it was given up.
    """

    id: str
    job_id: str
    attempt_id: str
    tenant_id: str
    kind: Annotated[str, OneOf(VerdictKind)]
    cause: str
    ranks: list[int]
    node_id: str | None
    gpu: str | None
    phase: str
    step: int
    operation: str
    frame: CodeFrame | None
    evidence: list[str]
    sentence: str
    reaction: Annotated[str, OneOf(VerdictReaction)]
    state: Annotated[str, OneOf(VerdictState)]
    created_at: Moment
    dismissed_at: Moment | None
    dismissed_by: str | None
    dismiss_reason: str | None
    last_step: int | None
    ended_at: Moment | None
    burn_in_id: str | None
    burn_in_note: str | None


class ChangedVerdict(Verdict, Trial):
    """The verdict after a change."""


class VerdictPage(Page):
    items: list[Verdict]


class VerdictRuleCount(TypedDict):
    """Verdicts of one rule, such as ``hang.step``, and cause. ``num_dismissed``: the false alarms among them."""

    kind: Annotated[str, OneOf(VerdictKind)]
    cause: str
    rule: str
    num_verdicts: int
    num_dismissed: int


class LearntVerdictRule(TypedDict):
    """A rule that only notifies of a job for a cause, since its verdicts were dismissed.

    ``proposal``: what may be changed.
    """

    job_id: str
    kind: Annotated[str, OneOf(VerdictKind)]
    cause: str
    rule: str
    num_dismissed: int
    proposal: str


class VerdictRules(TypedDict):
    """How often each rule gave a verdict, and which rules only notify of a job.

    ``since``: verdicts from then on are counted.
    """

    since: str
    counts: list[VerdictRuleCount]
    learnt: list[LearntVerdictRule]


class ChangedVerdictRules(VerdictRules, Trial):
    """The rules of a job after their dismissals were reset."""
