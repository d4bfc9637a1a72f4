"""The form of a scenario: its state at second 0, and the events after it. Times are in seconds, negative before 0."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from muster.domain.strict import Printable, StrictModel, Text
from simulator.scenarios.crashing import Crash
from simulator.scenarios.fleet_form import GpuState, Quota, TenantPlace, Topology
from simulator.scenarios.job_form import MOST_S, Delay, JobFields, Jobs, Length, QueuedJob

MOST_EVENTS: Final = 10_000
Place = tuple[int | str, ...]
_STEP_WORDS: Final = ("submit", "plan", "cancel", "end", "change", "restart", "crash")


class Happening(StrictModel):
    """One of ``submit``, ``plan``, ``cancel``, ``end``, ``change``, ``restart`` or ``crash``, at its second.

    ``plan``: only asked about. ``restart``: the control plane comes back, and knows only what it had stored.
    """

    at_s: Delay
    submit: QueuedJob | None = None
    plan: QueuedJob | None = None
    cancel: Printable | None = None
    end: Printable | None = None
    change: GpuState | None = None
    restart: Literal[True] | None = None
    crash: Crash | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if sum(getattr(self, word) is not None for word in _STEP_WORDS) != 1:
            raise ValueError(f"must have exactly one of {', '.join(_STEP_WORDS[:-1])} and {_STEP_WORDS[-1]}")
        return self


class Maintenance(StrictModel):
    """Planned work on ``nodes``, or on all whose path has ``domain``, from ``starts_s`` on, for ``lasts_s``.

    Jobs there get a stop request ``lead_s`` before it starts, and have left by then. No job is placed there that would
    still run at that time.
    """

    nodes: tuple[Printable, ...] = Field(default=(), strict=False)
    domain: Printable | None = None
    starts_s: Delay
    lasts_s: Length = 3600.0
    lead_s: Delay = 120.0

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if bool(self.nodes) == (self.domain is not None):
            raise ValueError("must have either nodes or a domain")
        return self


class Placed(NamedTuple):
    """A job, and its place in the document."""

    place: Place
    job: JobFields


class ScenarioForm(StrictModel):
    """The parts of a scenario, each valid by itself.

    ``policy``: its differences from the built-in one. The scenario ends at ``until_s``, or at its last request.
    """

    about: Text = ""
    topology: Topology
    gpus: tuple[GpuState, ...] = Field(default=(), strict=False)
    tenants: tuple[TenantPlace, ...] = Field(default=(), strict=False)
    quotas: tuple[Quota, ...] = Field(default=(), strict=False)
    jobs: Jobs = Field(default_factory=Jobs)
    failures_per_gpu_hour: Annotated[float, Field(ge=0, le=1)] = 0.0
    maintenance: tuple[Maintenance, ...] = Field(default=(), strict=False)
    requests: tuple[Happening, ...] = Field(default=(), max_length=MOST_EVENTS, strict=False)
    faults: tuple[Happening, ...] = Field(default=(), max_length=MOST_EVENTS, strict=False)
    policy: dict[str, Any] = Field(default_factory=dict)
    until_s: Annotated[float, Field(ge=0, le=MOST_S)] = 0.0

    @field_validator("about")
    @classmethod
    def _is_printed(cls, about: str) -> str:
        if not all(each.isprintable() or each == "\n" for each in about):
            raise ValueError("must be printable characters in one line or several")
        return about

    @property
    def placed_happenings(self) -> list[tuple[Place, Happening]]:
        """The events, each with its place, in the order of time: faults before requests of the same second."""
        parts: tuple[tuple[str, tuple[Happening, ...]], ...] = (("faults", self.faults), ("requests", self.requests))
        all_of = [((name, number), one) for name, part in parts for number, one in enumerate(part)]
        return sorted(all_of, key=lambda each: each[1].at_s)

    def placed_jobs(self) -> Iterator[Placed]:
        """Yield all jobs that run, are pending or are submitted."""
        yield from (Placed(("jobs", "running", number), job) for number, job in enumerate(self.jobs.running))
        yield from (Placed(("jobs", "queued", number), job) for number, job in enumerate(self.jobs.queued))
        yield from (
            Placed((*place, "submit"), one.submit) for place, one in self.placed_happenings if one.submit is not None
        )

    def planned_jobs(self) -> Iterator[Placed]:
        """Yield the jobs that are only asked about."""
        yield from (Placed((*place, "plan"), one.plan) for place, one in self.placed_happenings if one.plan is not None)
