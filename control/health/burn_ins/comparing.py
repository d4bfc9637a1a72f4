"""A GPU's burn-ins compared with the newest figures of its cohort."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final

from control.core.paging import ALWAYS, Part, SortKey, Span, by_time
from control.core.unit_of_work import UnitOfWork
from control.fleet.cohort_spreads import Spread, spreads_of
from control.health.burn_ins.read import BurnInFilter, BurnInRecord, list_burn_ins
from control.policy.policies import active_policy
from muster.db.models import BurnIn, Gpu
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid

SORTS: Final = by_time(
    SortKey(BurnIn.ordered_at, attrgetter("row.ordered_at"), datetime.fromisoformat),
    SortKey(BurnIn.id, attrgetter("row.id")),
)


@dataclass(frozen=True, slots=True)
class ComparedRate:
    """One rate of a burn-in and its cohort's spread.

    ``spread`` includes the GPU itself. It is None where the cohort has no newest figure of that name. ``is_outlier``:
    the rate is further from the median than the policy's tolerance.
    """

    measure: str
    value: float
    spread: Spread | None
    is_outlier: bool


@dataclass(frozen=True, slots=True)
class ComparedBurnIn:
    row: BurnInRecord
    rates: Sequence[ComparedRate]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Burn-ins of one GPU, all compared with the GPU's cohort of now (``cohort_key``), however old they are."""

    cohort_key: str
    burn_ins: Sequence[ComparedBurnIn]


def compare(unit: UnitOfWork, uuid: GpuUuid, part: Part, span: Span = ALWAYS) -> Comparison:
    """Return the GPU's burn-ins of ``span`` with their rates compared, as ``list_burn_ins`` orders them.

    Raises:
        NotFoundError: there is no such GPU.
    """
    rows = list_burn_ins(unit, BurnInFilter(gpu_uuid=uuid, span=span), part)
    gpu = unit.session.get(Gpu, uuid)
    if gpu is None:
        raise NotFoundError("there is no such GPU")
    spreads = {spread.measure: spread for spread in spreads_of(unit.session, gpu.cohort_key)}
    tolerance = active_policy(unit.session).health.cohort.tolerance
    compared = [ComparedBurnIn(row, _rates_of(row, spreads, tolerance)) for row in rows]
    return Comparison(gpu.cohort_key, compared)


def _rates_of(row: BurnInRecord, spreads: dict[str, Spread], tolerance: float) -> list[ComparedRate]:
    rates: dict[str, float] = (row.figures or {}).get("rates", {})
    return [_compared(measure, value, spreads.get(measure), tolerance) for measure, value in sorted(rates.items())]


def _compared(measure: str, value: float, spread: Spread | None, tolerance: float) -> ComparedRate:
    is_outlier = spread is not None and abs(value - spread.median) > tolerance * abs(spread.median)
    return ComparedRate(measure, value, spread, is_outlier)
