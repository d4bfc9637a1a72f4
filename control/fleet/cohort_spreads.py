"""The distribution of the newest burn-in figures in a cohort: one statement for a cohort of any size."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

_SPREAD: Final = text("""
SELECT rate.key, count(*), min(rate.value::double precision),
       percentile_cont(0.5) WITHIN GROUP (ORDER BY rate.value::double precision), max(rate.value::double precision)
FROM (
    SELECT DISTINCT ON (burn_ins.gpu_uuid) burn_ins.figures -> 'rates' AS rates
    FROM burn_ins JOIN gpus ON gpus.uuid = burn_ins.gpu_uuid
    WHERE gpus.cohort_key = :key AND burn_ins.figures IS NOT NULL
    ORDER BY burn_ins.gpu_uuid, burn_ins.ordered_at DESC
) newest, jsonb_each_text(newest.rates) rate
GROUP BY rate.key ORDER BY rate.key
""")


@dataclass(frozen=True, slots=True)
class Spread:
    """One measure of a fingerprint, over the ``num_gpus`` whose newest burn-in has it. The unit stands in its name."""

    measure: str
    num_gpus: int
    least: float
    median: float
    greatest: float


def spreads_of(session: Session, key: str) -> list[Spread]:
    """Return the spreads by the measures' names; none where no GPU of the cohort was burnt in."""
    return [Spread(*row) for row in session.execute(_SPREAD, {"key": key})]
