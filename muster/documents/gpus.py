"""GPUs, their evidence and readings, burn-ins and the circuit breaker, as the API answers them."""

from typing import Annotated

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, OneOf, Page
from muster.documents.fleet import Cordon, Incident
from muster.domain.evidence.findings import Trust
from muster.domain.evidence.repairs import RepairAction, RepairBy, RepairOutcome, RepairState, RepairVerb, RequestedBy
from muster.domain.gpu.signal_groups import SignalGroup
from muster.domain.states import AllocationState, BurnInOutcome, BurnInState, Contact, EvidenceState, Standing


class Gpu(TypedDict):
    """A GPU.

    ``standing``: its own, by its evidence. ``override``: a person's standing for it, if one is in force.

    ``effective_standing``: the one of both by which placement treats it; counts and filters use it. ``is_cordoned``: a
    cordon of its own or of its node keeps it out of new placements.

    ``score``: 0 to 100, null before the first.

    ``attributes``: other attributes that its agent reported, such as ``vbios_version``; a missing one was not reported.
    """

    uuid: str
    node_id: str
    slot_index: int
    serial: str | None
    model: str
    memory_bytes: int
    compute_capability: str
    driver_version: str
    standing: Annotated[str, OneOf(Standing)]
    override: Annotated[str, OneOf(Standing)] | None
    effective_standing: Annotated[str, OneOf(Standing)]
    is_cordoned: bool
    score: float | None
    is_mig_enabled: bool
    is_simulated: bool
    cohort_key: str
    attributes: dict[str, str]


class GpuPage(Page):
    items: list[Gpu]


class Evidence(TypedDict):
    """An evidence.

    ``points``: its present effect on the score. ``counts_for_s``: how long from ``last_seen_at`` it has one.

    ``why_no_points``: the reason as text if it has no effect.

    ``state``: the stage of its life; ``suppressed_by``: the reasons if it is suppressed. ``weighs_from_at``: from
    when a pending evidence weighs if its fault lasts.

    ``outlasted_at``: from when a fault that lasted weighs. ``closed_at``: when its fault was seen to be over.
    ``reopened_at``: when the fault was last reported again after that, or in another boot.
    """

    id: str
    gpu_uuid: str | None
    node_id: str
    fault_key: str
    detector: str
    detector_version: int
    severity: str
    trust: Annotated[str, OneOf(Trust)]
    sources: list[str]
    summary: str
    values: Json
    threatens_correctness: bool
    is_condemning: bool
    is_open: bool
    is_suspended: bool
    state: Annotated[str, OneOf(EvidenceState)]
    suppressed_by: list[str]
    weighs_from_at: Moment | None
    outlasted_at: Moment | None
    closed_at: Moment | None
    reopened_at: Moment | None
    points: float
    why_no_points: str | None
    onset_at: Moment
    last_seen_at: Moment
    counts_for_s: float
    dismissed_at: Moment | None
    dismissed_by: str | None
    dismiss_reason: str | None


class EvidencePage(Page):
    items: list[Evidence]


class Proposed(TypedDict):
    """A move that the rules make next, or that waits for a person to close a scope of the breaker."""

    to_standing: Annotated[str, OneOf(Standing)]
    cause: str
    text: str


class BreakerProposal(TypedDict):
    """Something that rules would do, and that the circuit breaker holds back until a person closes a scope.

    ``way``: ``standing`` (it moves to ``to_standing``), ``burn_in`` (one is ordered) or ``node_hold`` (its node takes
    nothing new). The GPU takes work as before, unless ``bars_placement``: its results may be wrong.
    """

    way: str
    to_standing: Annotated[str, OneOf(Standing)] | None
    text: str
    bars_placement: bool
    since: Moment


class Condition(TypedDict):
    """A condition. ``at``: when it is fulfilled by itself; null where a person has to act or the time is unknown.

    ``subject_id``: the evidence to dismiss, the cordon or the override that has to end; null for the other kinds.
    """

    kind: str
    text: str
    at: Moment | None
    subject_id: str | None


class RecoveryPath(TypedDict):
    """Conditions that together bring it back to the tier; without any one of them it stays out.

    ``at``: when all of them are fulfilled by themselves, null where that never happens or is not known.
    """

    conditions: list[Condition]
    at: Moment | None


class Refused(TypedDict):
    reason: str
    text: str


class Admission(TypedDict):
    """The admission to a tier.

    ``is_admitted`` is also true where only the GPU's own work bars it (``assigned`` in ``refusals``).

    ``recovery_paths``: the smallest first, then the cheapest to the operator; none where only its own work bars it, or
    a report that the judge has not yet evaluated.
    """

    tier: str
    is_admitted: bool
    refusals: list[Refused]
    recovery_paths: list[RecoveryPath]


class Override(TypedDict):
    id: str
    standing: Annotated[str, OneOf(Standing)]
    reason: str
    actor: str
    until: Moment
    created_at: Moment


class Holder(TypedDict):
    """The job that has the GPU; ``state`` is CLEANING once its programs have ended."""

    job_id: str
    job_name: str
    tenant_id: str
    attempt_id: str
    attempt_number: int
    state: Annotated[str, OneOf(AllocationState)]


class Repair(TypedDict):
    """A repair.

    ``by``: a person, or the agent of the GPU's host, which does ``verb``. ``text``: its result, or its state.
    """

    id: str
    gpu_uuid: str
    action: Annotated[str, OneOf(RepairAction)]
    by: Annotated[str, OneOf(RepairBy)]
    verb: Annotated[str, OneOf(RepairVerb)] | None
    state: Annotated[str, OneOf(RepairState)]
    fault_group: str
    reason: str
    started_by: str
    began_at: Moment
    taken_at: Moment | None
    ended_at: Moment | None
    outcome: Annotated[str, OneOf(RepairOutcome)] | None
    text: str | None


Move = TypedDict(
    "Move",
    {
        "from": Annotated[str, OneOf(Standing)] | None,
        "to": Annotated[str, OneOf(Standing)],
        "at": Moment,
        "cause": str | None,
        "reason": str,
        "actor": str,
        "policy_version": int | None,
        "evidence_ids": list[str],
    },
)


class Remedy(TypedDict):
    """The repair that is due for a GPU: ``action``, and the source that requests it.

    ``by``: the agent of its host, which does ``verb``, or a person, with the reason in ``actor``. ``attempt``: which of
    ``attempts_max`` repairs for ``fault_group`` it would be. ``then``: the next one if it fails or does not last;
    ``swap`` is the board's replacement. ``text``: all of it in a line.
    """

    action: Annotated[str, OneOf(RepairAction)]
    requested_by: Annotated[str, OneOf(RequestedBy)]
    by: Annotated[str, OneOf(RepairBy)]
    verb: Annotated[str, OneOf(RepairVerb)] | None
    actor: str
    why: str
    fault_group: str
    evidence_ids: list[str]
    attempt: int
    attempts_max: int
    then: list[Annotated[str, OneOf(RepairAction)]]
    text: str


class Judged(TypedDict):
    """The reasons for a GPU's standing. ``evidence``: the newest first, each with its ``points`` on the score.

    ``next_evaluation_at``: when the judge evaluates it again without new input. ``remedy``: the repair that is due for
    a GPU that is SUSPECT or QUARANTINED, null where there is none.
    """

    measured_score: float
    score_band: str
    score_valid_until: Moment | None
    standing_since: Moment | None
    origin_standing: Annotated[str, OneOf(Standing)] | None
    next_evaluation_at: Moment | None
    proposed: Proposed | None
    breaker_proposals: list[BreakerProposal]
    remedy: Remedy | None
    evidence: list[Evidence]
    admission: list[Admission]
    moves: list[Move]


class GpuHealth(Judged):
    """Health and nothing else. ``score`` is of now, 0 to 100; ``override``: a person's standing in force.

    ``effective_standing``: the one by which placement treats it.
    """

    uuid: str
    standing: Annotated[str, OneOf(Standing)]
    override: Annotated[str, OneOf(Standing)] | None
    effective_standing: Annotated[str, OneOf(Standing)]
    score: float


class SignalAge(TypedDict):
    """The age of one group of a GPU's signals, which its agent declares.

    ``delivered_at``: null if nothing was delivered yet. ``late_samples``: of ``readings``, the samples in a row for
    which the driver gave no answer. ``is_overdue``: it is older than ``max_age_s``, or too many samples are late.
    """

    group: Annotated[str, OneOf(SignalGroup)]
    text: str
    delivered_at: Moment | None
    max_age_s: float
    late_samples: int
    is_overdue: bool


class GpuDetail(Gpu, Judged):
    """``score`` is of now.

    ``signals``: none where its agent states no ages. ``driver_latency_ms``: how long the driver took to answer for it
    in the newest sample, or has not answered. ``incidents``: the open ones about it, its node, or a breaker that holds
    it back.
    """

    version: int
    node_name: str
    contact: Annotated[str, OneOf(Contact)]
    rack: str | None
    overrides: list[Override]
    cordons: list[Cordon]
    job: Holder | None
    repairs: list[Repair]
    signals: list[SignalAge]
    incidents: list[Incident]
    driver_latency_ms: float | None


class ChangedGpu(GpuDetail, Trial):
    """The GPU after a change."""


class Latest(TypedDict):
    """The latest readings. ``values``: metric → reading, null where there is none."""

    gpu_uuid: str
    node_id: str
    at: Moment
    received_at: Moment
    boot_id: str
    seq: int
    is_lost: bool
    values: dict[str, float | None]


class Series(TypedDict):
    """The history of one metric. ``values``: one a step, null where there is no reading."""

    metric: str
    unit: str
    kind: str
    values: list[float | None]


Gap = TypedDict(
    "Gap",
    {"node_id": str, "priority": str, "from": Moment, "until": Moment, "num_reports": int, "why": str},
)

History = TypedDict(
    "History",
    {
        "gpu_uuid": str,
        "from": Moment,
        "until": Moment,
        "step_s": float,
        "series": list[Series],
        "gaps": list[Gap],
    },
)


class BurnIn(TypedDict):
    """A burn-in.

    ``rates``: measured, higher is better, and the name has the unit. ``took_s``: the duration of the run. ``covers``:
    the fault groups that it tested and answers if it passes; null where release 0.1.0 took it, and it answers all.
    """

    id: str
    gpu_uuid: str
    node_id: str
    state: Annotated[str, OneOf(BurnInState)]
    outcome: Annotated[str, OneOf(BurnInOutcome)] | None
    reasons: list[str]
    open_bands: list[str]
    num_peers: int
    model: str | None
    driver: str | None
    library: str | None
    is_simulated: bool | None
    rates: dict[str, float] | None
    covers: list[str] | None
    took_s: float | None
    reason: str
    ordered_by: str
    ordered_at: Moment
    tries: int
    began_at: Moment | None
    ended_at: Moment | None
    last_fault: str | None
    judged_at: Moment | None
    policy_version: int | None


class OrderedBurnIn(BurnIn, Trial):
    """The burn-in as it was ordered."""


class BurnInDetail(BurnIn):
    """A burn-in with all its figures."""

    figures: Json | None


class BurnInPage(Page):
    items: list[BurnIn]


class BreakerScope(TypedDict):
    """Rules have taken ``num_quarantined`` of at most ``cap`` GPUs out, by whatever way.

    ``num_proposed``: GPUs of the scope that they would take out too, and that the breaker holds back.
    """

    scope: str
    is_open: bool
    num_quarantined: int
    num_proposed: int
    cap: int
    opened_at: Moment | None
    closed_at: Moment | None


class Breaker(TypedDict):
    name: str
    is_open: bool
    scopes: list[BreakerScope]


class ChangedBreaker(Breaker, Trial):
    """The breaker after a scope was closed."""


class BreakerPage(Page):
    items: list[Breaker]
