"""Findings about the speed of a training, each with the gain that its repair would bring.

The means of a step over all ranks say where its time goes. A part that takes ``x`` of a step, and would take ``y`` if
it were repaired, leaves the other parts as they are::

    step before   1                    others 1 - x
    step after    (1 - x) / (1 - y)
    gain          (1 - y) / (1 - x)    as a factor of the tokens a second

Findings are advice. They come from reports of the program itself, so no decision about a GPU or a bill rests on them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from statistics import median
from typing import Any, Final

from muster.domain.policy.objectives import FindingPolicy

DAY_MS: Final = 86_400_000
STEP_PARTS: Final = ("data_s", "forward_s", "backward_s", "collective_s", "optimizer_s", "other_s")


class FindingKind(StrEnum):
    MFU_LOW = "mfu_low"
    COMMUNICATION_FAULT = "communication_fault"
    COMMUNICATION_HIGH = "communication_high"
    LOADER_BOUND = "loader_bound"
    THROUGHPUT_DOWN = "throughput_down"


ADVICE_OF_FINDINGS: Final[Mapping[FindingKind, str]] = {
    FindingKind.MFU_LOW: "Profile a few steps: larger batches, compiled or fused kernels, a lower precision, and fewer"
    " synchronisations each raise it. Remove the other findings first, since they lower it too.",
    FindingKind.COMMUNICATION_FAULT: "Likely a fault: look for a slow rank or link (`muster verdict list`), the"
    " transport that NCCL chose, and a tensor-parallel group across hosts.",
    FindingKind.COMMUNICATION_HIGH: "Overlap collectives with the backward pass, use larger gradient buckets,"
    " accumulate gradients over more micro-batches, or place the job within one domain (`--within`).",
    FindingKind.LOADER_BOUND: "Use more loader workers, prefetch, keep data on the hosts' own disks, or decode it"
    " beforehand.",
    FindingKind.THROUGHPUT_DOWN: "Compare the parts of a step then and now (`muster job steps`): data, collectives or"
    " clocks of GPUs. Saves and evaluations are not part of it.",
}


@dataclass(frozen=True, slots=True)
class Report:
    """The pace of some steps as rank 0 reported it at ``at_ms``, in an attempt of ``world_size`` ranks."""

    at_ms: int
    world_size: int | None
    pace: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``value`` against ``bar``: shares of 1; of ``throughput_down``, rates in ``unit``.

    ``gain``: the factor of its speed if the value were ``repaired``. ``since_ms``, ``until_ms``: of the reports that
    it rests on.
    """

    kind: FindingKind
    value: float
    bar: float
    repaired: float
    unit: str
    gain: float
    since_ms: int
    until_ms: int
    num_reports: int

    @property
    def advice(self) -> str:
        return ADVICE_OF_FINDINGS[self.kind]


@dataclass(frozen=True, slots=True)
class StepShares:
    """What the ranks report on average. ``communication``, ``loader``: shares of a step, without saves.

    ``mfu``: a share of the GPUs' peak. None: not each rank reports it, or of ``communication`` and ``loader`` no rank
    has done a step; where ranks exchange within their passes no figure of communication exists.
    """

    mfu: float | None = None
    communication: float | None = None
    loader: float | None = None


@dataclass(frozen=True, slots=True)
class StepSums:
    """Sums over the ``num_ranks`` ranks of an attempt that have done a step, as far as each reports the figure.

    ``step_s``: of ``STEP_PARTS``. ``num_mfus``, ``num_collectives``: how many report it.
    """

    num_ranks: int
    step_s: float
    num_mfus: int
    mfu: float
    num_collectives: int
    collective_s: float
    data_s: float

    @property
    def shares(self) -> StepShares:
        if not self.num_ranks or not self.step_s:
            return StepShares()
        return StepShares(
            mfu=self.mfu / self.num_ranks if self.num_mfus == self.num_ranks else None,
            communication=self.collective_s / self.step_s if self.num_collectives == self.num_ranks else None,
            loader=self.data_s / self.step_s,
        )


def shares_of(paces: Sequence[Mapping[str, Any]]) -> StepShares:
    """Return the shares of the newest steps. ``paces``: of each rank of an attempt."""
    known = [pace for pace in paces if _step_s(pace) > 0]
    mfus = [float(pace["mfu"]) for pace in known if pace.get("mfu") is not None]
    parts = [float(pace["collective_s"]) for pace in known if pace.get("collective_s") is not None]
    step_s, data_s = sum(_step_s(pace) for pace in known), sum(float(pace.get("data_s") or 0) for pace in known)
    return StepSums(len(known), step_s, len(mfus), sum(mfus), len(parts), sum(parts), data_s).shares


def findings_of(ranks: Sequence[Report], reports: Sequence[Report], policy: FindingPolicy) -> list[Finding]:
    """Return the findings, the largest gain first.

    ``ranks``: the newest pace of each rank of the newest attempt; ``reports``: of rank 0, in the last two days.
    """
    found = [each for each in (*_of_steps(ranks, policy), *_of_days(reports, policy)) if _is_finite(each)]
    return sorted(found, key=lambda each: (-each.gain, each.kind))


def _is_finite(finding: Finding) -> bool:
    """Return whether its figures are numbers: a program may report a value whose inverse is none."""
    return all(isfinite(each) for each in (finding.value, finding.bar, finding.gain))


def _of_steps(ranks: Sequence[Report], policy: FindingPolicy) -> Iterator[Finding]:
    known = [rank for rank in ranks if _step_s(rank.pace) > 0]
    if not known:
        return
    shares = shares_of([rank.pace for rank in known])
    span = min(rank.at_ms for rank in known), max(rank.at_ms for rank in known), len(known)
    if shares.mfu is not None and 0 < shares.mfu < policy.mfu_min:
        yield Finding(
            FindingKind.MFU_LOW, shares.mfu, *(policy.mfu_min,) * 2, "share", policy.mfu_min / shares.mfu, *span
        )
    if shares.communication is not None:
        yield from _of_communication(shares.communication, policy, span)
    if shares.loader is not None and 1 - shares.loader < policy.busy_min:
        gain = _gain(shares.loader, 1 - policy.busy_min)
        yield Finding(FindingKind.LOADER_BOUND, 1 - shares.loader, *(policy.busy_min,) * 2, "share", gain, *span)


def _of_communication(share: float, policy: FindingPolicy, span: tuple[int, int, int]) -> Iterator[Finding]:
    if share <= policy.communication_high:
        return
    high, fault = policy.communication_high, policy.communication_fault
    is_fault = share > fault
    kind = FindingKind.COMMUNICATION_FAULT if is_fault else FindingKind.COMMUNICATION_HIGH
    yield Finding(kind, share, fault if is_fault else high, high, "share", _gain(share, high), *span)


def _gain(share: float, repaired: float) -> float:
    """Return the factor of the speed if a part took ``repaired`` of a step instead of ``share``."""
    return (1 - repaired) / max(1 - share, 1e-9)


def _of_days(reports: Sequence[Report], policy: FindingPolicy) -> Iterator[Finding]:
    """Yield the finding that the newest 24 h were slower than the 24 h before, with the same number of ranks."""
    if not reports:
        return
    newest = max(reports, key=lambda report: report.at_ms)
    unit = "tokens/s" if newest.pace.get("tokens_per_s") is not None else "steps/s"
    begins = newest.at_ms - DAY_MS
    alike = [
        (report.at_ms, rate)
        for report in reports
        if report.world_size == newest.world_size and (rate := _rate(report, unit)) is not None
    ]
    now = [rate for at_ms, rate in alike if at_ms > begins]
    before = [rate for at_ms, rate in alike if begins - DAY_MS < at_ms <= begins]
    if min(len(now), len(before)) < policy.min_reports:
        return
    usual, present = median(before), median(now)
    if present < usual * (1 - policy.throughput_drop):
        span = begins - DAY_MS, newest.at_ms, len(now) + len(before)
        yield Finding(FindingKind.THROUGHPUT_DOWN, present, usual, usual, unit, usual / present, *span)


def _rate(report: Report, unit: str) -> float | None:
    """Return tokens a second of all ranks, or steps a second."""
    if unit == "steps/s":
        step_s = _step_s(report.pace)
        return 1 / step_s if step_s > 0 else None
    tokens = report.pace.get("tokens_per_s")
    return float(tokens) * (report.world_size or 1) if tokens is not None and tokens > 0 else None


def _step_s(pace: Mapping[str, Any]) -> float:
    """Return the time of a step without saves, which are between steps."""
    return sum(float(pace.get(part) or 0) for part in STEP_PARTS)


def words_of(finding: Finding) -> str:
    """Return what was found, and what its repair would bring, in one line."""
    value, bar = finding.value, finding.bar
    gain = f"{finding.gain:.2f} × its speed"
    match finding.kind:
        case FindingKind.MFU_LOW:
            return f"MFU is {value:.0%}, less than {bar:.0%}: at {bar:.0%} it would have {gain}"
        case FindingKind.LOADER_BOUND:
            return f"busy for {value:.0%} of a step, the rest waits for data: at {bar:.0%} it would have {gain}"
        case FindingKind.THROUGHPUT_DOWN:
            return (
                f"{value:,.4g} {finding.unit} in the last 24 h, {bar:,.4g} in the 24 h before:"
                f" as before it would have {gain}"
            )
        case _:
            repaired = f"if they took {finding.repaired:.0%}, it would have {gain}"
            return f"collectives take {value:.0%} of a step, more than {bar:.0%}: {repaired}"
