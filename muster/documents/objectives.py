"""Objectives of job classes with the states of their error budgets, and findings about the speed of a job."""

from typing import Literal

from typing_extensions import TypedDict

from muster.documents.fields import Moment, Page


class BurnRates(TypedDict):
    """A pair of windows by its name: the rates of both, against ``factor``. ``since``: since when it burns, or null."""

    name: str
    factor: float
    long_s: float
    short_s: float
    severity: Literal["page", "ticket"]
    long_rate: float
    short_rate: float
    since: Moment | None


class ObjectiveBudget(TypedDict):
    """An objective. ``state``: whether its error budget burns, since ``state_since``; null until events are counted.

    ``num_good``, ``num_bad``: events in ``window_days``. ``left_fraction``: of the error budget, 1 for all of it.
    ``forbids``: acts that a spent budget concerns; ``is_enforced``: whether they are refused then, or only recorded.
    ``counted_until``: the end of the newest five minutes that are counted.
    """

    name: str
    job_class: str
    indicator: Literal["success", "start_latency", "step_latency", "checkpoint_success", "resume_success"]
    target: float
    window_days: int
    within_s: float | None
    state: Literal["ok", "ticket", "page"] | None
    state_since: Moment | None
    good_share: float | None
    num_good: int
    num_bad: int
    left_fraction: float
    is_spent: bool
    forbids: list[str]
    is_enforced: bool
    burn_rates: list[BurnRates]
    counted_from: Moment | None
    counted_until: Moment | None


class ObjectiveBudgetPage(Page):
    items: list[ObjectiveBudget]


class JobFinding(TypedDict):
    """A finding about the speed of a job. ``value`` against ``bar``, in ``unit``: `share`, `tokens/s` or `steps/s`.

    ``gain``: the factor of its speed if the value were ``repaired``. ``since``, ``until``: of ``num_reports`` reports
    of its own program, on which it rests.
    """

    kind: Literal["mfu_low", "communication_fault", "communication_high", "loader_bound", "throughput_down"]
    text: str
    advice: str
    value: float
    bar: float
    repaired: float
    unit: str
    gain: float
    since: Moment
    until: Moment
    num_reports: int


class JobFindings(TypedDict):
    """Findings about a job's newest attempt with reports, the largest gain first. ``why``: why there is none."""

    items: list[JobFinding]
    why: str | None
