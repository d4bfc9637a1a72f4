"""Facts about GPUs, hosts and attempts in a window of time: plain data from which the claims on it are made.

All times are milliseconds since 1970 by the server's clock, except what a program reports about itself (``Steps``,
``Attempt.restores``, ``Attempt.saves``), which is by its host's clock. Facts may reach beyond the window. The same fact
may be there twice, and the order of facts has no meaning.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.domain.states import Cause, Standing


@dataclass(frozen=True, slots=True)
class Period:
    """Time from ``start_ms`` to before ``end_ms``; None: not over yet.

    ``cause``: a token of why. ``evidence``: ids of what proves it.
    """

    start_ms: int
    end_ms: int | None = None
    cause: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StandingMove:
    """A move of a GPU's own standing. ``cause``: the move's token; ``evidence``: what it cites.

    ``number``: orders moves of one moment.
    """

    at_ms: int
    standing: Standing
    cause: str = ""
    evidence: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class Override:
    """A person's standing for a GPU. ``end_ms``: when it ended or ends; it counts instead of the GPU's own."""

    start_ms: int
    end_ms: int
    standing: Standing
    override_id: str = ""


@dataclass(frozen=True, slots=True)
class Cordon:
    """A cordon in force on a GPU or a host. ``cause``: its reason code. ``is_drain``: its operator empties the host.

    ``start_ms``: when it came into force, which may be later than its creation. ``end_ms``: at its release or expiry.
    """

    start_ms: int
    end_ms: int | None
    cause: str
    cordon_id: str = ""
    is_drain: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """One GPU in the allocation of one attempt.

    ``placed_ms``: since when it is assigned. ``exited_ms``: when the part on its host was known to have exited; None:
    not yet, or never, as after a reboot. ``clean_ms``: when it was proved clean; None: not yet. The use ends once it is
    clean and its attempt has ended.
    """

    attempt_id: str
    placed_ms: int
    exited_ms: int | None = None
    clean_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU on one host from ``from_ms`` to before ``until_ms``; None: it is still there.

    ``from_ms``: its first standing, or when it came to this host. A GPU that moves to another host is there twice, with
    times that do not overlap. ``moves``: all within the window, and the newest before it.
    ``burn_ins``: that run; ``repairs``: from their order to their end, with the action as cause. ``holds``: for a job;
    the cause is the kind of hold, the evidence the job. ``spares``: while it is kept as a spare.
    """

    gpu_uuid: str
    node_id: str
    model: str
    cohort_key: str
    from_ms: int
    until_ms: int | None = None
    moves: tuple[StandingMove, ...] = ()
    overrides: tuple[Override, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    burn_ins: tuple[Period, ...] = ()
    repairs: tuple[Period, ...] = ()
    holds: tuple[Period, ...] = ()
    spares: tuple[Period, ...] = ()
    uses: tuple[Use, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One host. ``silences``: without contact; the cause is ``silent`` or ``lost``.

    ``group``: of the hosts that the same pending jobs could use.
    """

    node_id: str
    rack: str | None = None
    site: str | None = None
    cordons: tuple[Cordon, ...] = ()
    silences: tuple[Period, ...] = ()
    group: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """Consecutive steps ``first`` to ``last`` of an attempt, done at ``end_ms`` after ``took_ms`` in all.

    One step, or a run of them that was summed up; by the clock of the host of rank 0. ``save_ms``: how long saves
    stopped them, within ``took_ms``.
    """

    first: int
    last: int
    end_ms: int
    took_ms: int
    save_ms: int = 0


@dataclass(frozen=True, slots=True)
class Rollback:
    """The attempt threw away its steps after ``to_step`` in place, after ``from_step``, at ``at_ms``.

    ``since_ms``: when it had done ``to_step``; None: by the facts' own steps, else since the attempt's first.
    """

    at_ms: int
    from_step: int
    to_step: int
    cause: str
    since_ms: int | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slow:
    """A verdict that a rank is a straggler. ``usual_step_ms``: the median step before it.

    None: of the facts' own steps before it; without any nothing counts as slowed.
    """

    start_ms: int
    end_ms: int | None
    verdict_id: str
    cause: str = ""
    usual_step_ms: int | None = None


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """An earlier attempt of the job that trained. ``last_step``: the last that it trained and did not throw away.

    ``cause``: of its end. ``evidence``: ids of the reclaim, verdicts or evidence that ended it. ``assigned_ms``: how
    long it had its GPUs; None: not known. To train its steps again takes no longer, whatever a program reports.
    """

    number: int
    last_step: int
    cause: Cause
    evidence: tuple[str, ...] = ()
    assigned_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. ``placed_ms`` to ``ended_ms`` is its time by the server's clock: no report counts outside of it.

    ``running_ms``: when all its hosts had started the program. ``first_step_ms``: when its first step began, if that
    is known. ``has_reports``: its program reports what it does; of another the time since ``running_ms`` counts as
    productive, with the cause ``unreported``. ``stopping_ms``: when it was asked to stop. ``known_until_ms``: the time
    of the newest facts, for an attempt that has not ended. ``evidence``: of its end.
    ``restores``: while a checkpoint is read. ``saves``: while one is written; what its steps do at the same time is not
    the save's. ``hangs``: from the last progress to the next, or to the end; evidence: the verdict.
    """

    attempt_id: str
    placed_ms: int
    job_id: str = ""
    tenant_id: str = ""
    tier: str = ""
    job_class: str | None = None
    claimed_ms: int | None = None
    running_ms: int | None = None
    first_step_ms: int | None = None
    stopping_ms: int | None = None
    ended_ms: int | None = None
    known_until_ms: int | None = None
    end_cause: Cause | None = None
    evidence: tuple[str, ...] = ()
    has_reports: bool = True
    steps: tuple[Steps, ...] = ()
    saves: tuple[Period, ...] = ()
    restores: tuple[Period, ...] = ()
    rollbacks: tuple[Rollback, ...] = ()
    hangs: tuple[Period, ...] = ()
    slow: tuple[Slow, ...] = ()
    earlier: tuple[EarlierAttempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """A job waits for GPUs, by its binding reason. ``group``: of the hosts that it could use; empty: any."""

    start_ms: int
    end_ms: int | None
    reason: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of the window ``start_ms`` to before ``end_ms``: an hour, or the part of it that is over."""

    start_ms: int
    end_ms: int
    gpus: tuple[Gpu, ...]
    nodes: Mapping[str, Node] = field(default_factory=dict)
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
