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

    The expected run time of a job is its wall time. Without one it follows from its tenant's jobs of the same name and
    shape, and if too few of them have ended well, it is `expected_run_s`.
    """

    ageing_exponent: Annotated[float, Field(ge=0, le=4, strict=False)] = Field(
        1.5,
        description="Within a tier the job with the largest (wait + run) ÷ run^x goes first, where x is this: short "
        "jobs early, and each earlier the longer it waits. 0: longest wait and run first; 1: highest "
        "response ratio next.",
    )
    host_share_exponent: Annotated[float, Field(ge=0, le=4, strict=False)] = Field(
        0.5,
        description="(wait + run) ÷ run^x is multiplied by the requested GPUs of each host to this power: a job that "
        "needs whole hosts goes before an equally long job that fits between others. 0: no difference.",
    )
    backfill: BackfillRule = Field(
        EASY,
        description="How later jobs may start before earlier ones. `easy`: GPUs are held for the first jobs that do "
        "not fit (`holds_per_cohort`); jobs behind them may delay one another. `conservative`: each "
        "pending job has a hold from its earliest possible time on, given the holds of all jobs before "
        "it (`reservations_max` of them), and no job starts that would delay one of these; fewer jobs "
        "start at once. Places are then taken in the fleet's order and not by best fit, so that jobs "
        "that start meanwhile change no other job's place. Its starts are expected and not firm, since a "
        "place may move for a job before it in order.",
    )
    expected_run_s: Seconds = Field(
        86_400.0, description="The expected run time of a job without a wall time and without similar jobs."
    )
    history_quantile: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.9,
        description="The expected run time of a job without a wall time: this share of similar jobs took no longer. "
        "Similar are the newest 20 jobs of its tenant with the same name and shape that ended well, "
        "among the newest 200 of the name; 0.9 needs 9 of them. It is for order and backfill alone: no "
        "job is stopped by it.",
    )
    holds_per_cohort: Annotated[int, Field(ge=0, le=64)] = Field(
        1,
        description="For so many pending jobs of a cohort GPUs are held until all of their place is free; others run "
        "there only if their wall time ends before (1 is EASY backfill). 0: any job that fits starts. "
        "For `easy` alone.",
    )
    overrun_fraction: Annotated[float, Field(ge=0.01, le=10, strict=False)] = Field(
        0.5,
        description="The expected run time of a job that runs longer than similar jobs is raised by this fraction of "
        "it, by a minute at least, and again whenever it is exceeded. If its end were expected at any "
        "moment, GPUs would be held idle for a job that waits for it.",
    )
    overtaken_work_bound_s: Seconds = Field(
        216_000.0,
        description="Once later jobs of its tier have done so much work before a job starts, that job goes first in "
        "its tier. The work is GPU-seconds ÷ GPUs of the fleet: for so long the whole fleet may work for "
        "later jobs. It counts from submission, also while the job is HELD or its tenant's quota keeps "
        "it pending.",
    )
    firm_within_s: Annotated[float, Field(ge=0, le=604_800, strict=False)] = Field(
        7200.0,
        description="By `easy` the start of a job is firm once its place is free within so long. The jobs there must "
        "all state wall times. Later jobs of equal or lower right then run there only if they end before. "
        "A longer time makes more starts firm, and short jobs wait longer. 0: no start is firm.",
    )
    reservation_window_s: Seconds = Field(
        604_800.0,
        description="By `conservative` no hold begins later than so long from now.",
    )
    reservations_max: Annotated[int, Field(ge=1, le=1000)] = Field(
        64,
        description="By `conservative` at most so many pending jobs have holds, the first in order; a later job runs "
        "where it delays none of these.",
    )
    usage_half_life_s: Seconds = Field(
        604_800.0,
        description="A tenant's use of GPUs so long ago counts half against its fair share: a tenant that used much "
        "recently gets less beyond the guarantees, until the use has aged. Counted until the last full "
        "hour.",
    )
    starvation_s: Seconds = Field(
        86_400.0,
        description="Once the next job to get a hold has waited so long, GPUs are held for it even where jobs "
        "without a wall time run: each is expected to run as long again as it has.",
    )
