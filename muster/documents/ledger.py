"""The ledger, as the API answers it."""

from typing import Any

from typing_extensions import TypedDict

from muster.documents.fields import Page


class LedgerSum(TypedDict):
    """GPU time that has in common what it was grouped by; the rest is null. An empty text: it is not known, or none.

    ``gpu_hours``: ``num_ms`` in hours. ``share``: its part of the answer's sum, from 0 to 1.
    """

    account: str | None
    cause: str | None
    tenant_id: str | None
    tier: str | None
    job_class: str | None
    model: str | None
    cohort_key: str | None
    rack: str | None
    site: str | None
    begins_at: str | None
    node_id: str | None
    job_id: str | None
    attempt_id: str | None
    num_ms: int
    gpu_hours: float
    share: float


class LedgerSums(TypedDict):
    """Sums of GPU time over the hours from ``since`` to before ``until``.

    ``num_hours``: hours that are computed. ``num_open_hours``: hours among them that may still change, since hosts may
    report about them. ``num_ms``: the sum of all sums. ``is_whole``: no sum was left out.
    """

    since: str
    until: str
    num_hours: int
    num_open_hours: int
    num_ms: int
    is_whole: bool
    sums: list[LedgerSum]


class LedgerHour(TypedDict):
    """One hour. It is provisional while ``closed_at`` is null; afterwards it changes by corrections alone.

    ``revision``: the number of its newest correction; 0: none. ``capacity_ms``: GPU-milliseconds of all GPUs that were
    enrolled, and the sum of its entries. ``awaits``: how many hosts may still report about it. ``gaps``: the times of
    which reports are lost, in milliseconds since 1970: of a host's agent (``nodes``), or by a restore (``restores``).
    """

    hour: str
    computed_at: str
    closed_at: str | None
    revision: int
    num_gpus: int
    capacity_ms: int
    unexplained_ms: int
    awaits: int
    gaps: dict[str, Any]


class LedgerHourPage(Page):
    items: list[LedgerHour]


class LedgerEntry(TypedDict):
    """Time of GPUs of one host in one hour and account. ``gpu_ms``: the milliseconds of each of ``gpus``.

    ``revision``: 0 of the hour's closing; more: a correction, whose milliseconds may be negative. ``evidence``: ids of
    verdicts, reclaims and evidence that explain a loss.
    """

    id: int
    hour: str
    revision: int
    node_id: str
    account: str
    cause: str
    num_ms: int
    gpus: list[str]
    gpu_ms: list[int]
    evidence: list[str]
    model: str
    cohort_key: str
    rack: str | None
    site: str | None
    attempt_id: str | None
    job_id: str | None
    tenant_id: str | None
    tier: str | None
    job_class: str | None


class LedgerEntryPage(Page):
    items: list[LedgerEntry]


class LedgerRecountSum(TypedDict):
    """GPU time of one group by both counts.

    ``group``: an account, or `used` or `empty`: accounts that no event distinguishes. ``accounts``: the ledger's
    milliseconds of each account in it.
    """

    group: str
    accounts: dict[str, int]
    stored_ms: int
    recounted_ms: int


class LedgerRecountEvent(TypedDict):
    """An event that says what a GPU was. ``event_id``: of an event; `table/id` of a record older than all events."""

    event_id: str
    kind: str
    at: str
    subject_id: str


class LedgerRecountDifference(TypedDict):
    """Time of one GPU in one hour and group that the two counts do not agree on, with the events that decide."""

    hour: str
    gpu_uuid: str
    attempt_id: str | None
    group: str
    stored_ms: int
    recounted_ms: int
    events: list[LedgerRecountEvent]


class LedgerNotRecounted(TypedDict):
    """Time of which events say nothing, or not enough.

    ``cause``: `not_computed` (the ledger has no such hour yet, or it had no GPU), `dropped` (its entries are no longer
    kept), `lost_end` (no event says when a host of an attempt was clean), `within_use` (which account a used GPU's
    time was: programs report that), `within_empty` (for what a free GPU was free: no event says it by GPU).
    ``num_ms``: GPU time in milliseconds; null if it is not known.
    """

    cause: str
    num_hours: int | None
    num_ms: int | None


class LedgerRecount(TypedDict):
    """A recount of the ledger's hours from events, compared with what is stored.

    A difference of a GPU counts as within gaps for at most as long as its host's gaps are in that hour.
    """

    since: str
    until: str
    events_since: str
    num_events: int
    num_records: int
    num_gpus: int
    num_hours: int
    num_open_hours: int
    sums: list[LedgerRecountSum]
    num_differences: int
    difference_ms: int
    differences: list[LedgerRecountDifference]
    num_in_gaps: int
    in_gaps_ms: int
    not_recounted: list[LedgerNotRecounted]
