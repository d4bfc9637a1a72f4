"""The order in which jobs of one tier are tried, and the holds for pending jobs."""

from typing import Annotated, Final, Literal

from pydantic import Field

from muster.domain.policy.quantities import Seconds
from muster.domain.strict import StrictModel

BackfillRule = Literal["easy", "conservative"]
EASY: Final[BackfillRule] = "easy"
CONSERVATIVE: Final[BackfillRule] = "conservative"


class QueuePolicy(StrictModel):
    """The queue's order within a tier, and backfill around places that are held.

    A job's wall time is what it is believed to take. Who says none is believed to take what its tenant's jobs of the
    same name and shape took, and where too few of those have ended well, `expected_run_s`.
    """

    ageing_exponent: Annotated[float, Field(ge=0, le=4, strict=False)] = Field(
        1.5,
        description="Within a tier goes first whose (wait + run) ÷ run^x is largest, x being this: short jobs early, "
        "and each earlier the longer it waits. 0: longest wait and run first; 1: highest response ratio next.",
    )
    host_share_exponent: Annotated[float, Field(ge=0, le=4, strict=False)] = Field(
        0.5,
        description="(wait + run) ÷ run^x counts times the GPUs asked of each host to this power: what needs whole "
        "hosts goes before a job as long that fits between others. 0: all alike.",
    )
    backfill: BackfillRule = Field(
        EASY,
        description="Who may pass whom. `easy`: a place is held for the first that do not fit (`holds_per_cohort`); "
        "those behind may delay one another. `conservative`: each that waits has a place from its earliest moment on, "
        "given those of all before it (`reservations_max` of them), and nobody starts who would delay one of these; "
        "fewer start at once. Places are then taken in the fleet's order and not by best fit, so that who starts "
        "meanwhile changes nobody's place.",
    )
    expected_run_s: Seconds = Field(
        86_400.0, description="What a job is believed to take that says no wall time and has no like."
    )
    history_quantile: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.9,
        description="What a job without a wall time is believed to take: so many of the newest 20 of its tenant's jobs "
        "of the same name and shape, among the newest 200 of the name, that ended well took no longer; 0.9 asks for 9 "
        "of them. For order and backfill "
        "alone: no job is stopped by it.",
    )
    holds_per_cohort: Annotated[int, Field(ge=0, le=64)] = Field(
        1,
        description="For so many waiting jobs of a cohort a place is held until its GPUs come free; others run there "
        "only where their wall time ends before (1 is EASY backfill). 0: whoever fits passes. For `easy` alone.",
    )
    overrun_fraction: Annotated[float, Field(ge=0.01, le=10, strict=False)] = Field(
        0.5,
        description="A job that runs on when others like it would have ended is believed to take so much longer than "
        "was believed, as a part of that and by a minute at least, and so on. Believed to end at any moment, it would "
        "have GPUs held idle beside its own.",
    )
    passed_work_bound_s: Seconds = Field(
        216_000.0,
        description="Once jobs of its tier that came later have done so much work before a job starts, that job goes "
        "first in its tier. The work is GPU-seconds ÷ GPUs of the fleet: for so long the whole fleet may work for "
        "others. It counts from submission, also while the job is HELD or its tenant's quota keeps it waiting.",
    )
    reservation_window_s: Seconds = Field(
        604_800.0,
        description="By `conservative` no place is looked for that begins later than so long from now.",
    )
    reservations_max: Annotated[int, Field(ge=1, le=1000)] = Field(
        64,
        description="By `conservative` so many of those that wait have places at most, the first in order; who comes "
        "after them runs where that delays none of these.",
    )
    usage_half_life_s: Seconds = Field(
        604_800.0,
        description="What a tenant has held so long ago counts half against its fair share: who used much of late has "
        "less of what is not guaranteed, until it is forgotten. Counted until the last full hour.",
    )
    starvation_s: Seconds = Field(
        86_400.0,
        description="Once the job whose turn it is to have a place held has waited so long, one is held also where "
        "jobs without a wall time run: each is believed to run as long again as it has.",
    )
