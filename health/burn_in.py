"""The verdict on a burn-in, from its figures: exact results, equal bits among peers, clean counters, speed.

* **Partial sums.** A GEMM over small whole numbers has one exact answer, in whatever order it is summed; the runner
  computes it next to the GPU. Any other answer is a wrong result: it fails and threatens correctness.
* **Bands.** A GEMM over random numbers of one magnitude has no exact answer, but the same GPU model, driver and library
  give the same bits. A digest is compared among GPUs of one key: the majority is right; without one it is undecided.
* **Counters** of memory and link errors must not have grown.
* **Rates** make the fingerprint. A rate far under its peers' median fails, and so does one under the policy's floor
  for all GPUs (PCIe copies).
* **Coverage.** A passed burn-in answers the fault groups that it tested, no others (``coverage_of``): a burn-in of one
  GPU tests no NVLink.
* **Vendor's tests** (``dcgmi diag``), where a host runs them: a failure on the GPU fails the burn-in.

Source: bitwise comparison finds errors that ECC and vendor diagnostics miss (OSDI'26, "SDCs in the Wild" and AEGIS).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from health.detectors.detector import counts_for_ms
from muster.domain.evidence.findings import Finding, Severity, Source, Trust
from muster.domain.evidence.traits import FaultGroup
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import BurnInPolicy, HealthPolicy
from muster.domain.states import BurnInOutcome

NAME: Final = "burn_in"
VERSION: Final = 1
MEMORY_SUMS: Final = "memory "
"""Beginning of the names of the exact sums of memory patterns."""
COPIES: Final = frozenset({"copy_to_device_gb_per_s", "copy_to_host_gb_per_s"})


@dataclass(frozen=True, slots=True, order=True)
class ComparisonKey:
    """GPUs with equal keys compute the same bits. ``library``: name and version of the library that ran the GEMM."""

    model: str
    driver: str
    library: str


@dataclass(frozen=True, slots=True)
class PartialSum:
    """One exact sum and the GPU's result. Both are whole numbers, so that equal means equal."""

    name: str
    golden: int
    measured: int


@dataclass(frozen=True, slots=True)
class BurnInFigures:
    """Figures that one burn-in of one GPU measured.

    ``bands``: magnitude band → digest of the result's bits. ``counter_deltas``: metric → growth during the run, None
    where the GPU has no such counter. ``rates``: figure with its unit in its name → value, higher is better.
    ``vendor_failures``: failures that the vendor's own tests found, a sentence each.
    """

    gpu_uuid: GpuUuid
    key: ComparisonKey
    partial_sums: tuple[PartialSum, ...]
    bands: Mapping[str, str] = field(default_factory=dict)
    counter_deltas: Mapping[str, float | None] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    vendor_failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a burn-in with its reasons.

    ``reasons``: the failures as text. ``undecided``: bands that its peers could not decide. ``is_wrong``: the GPU gave
    a wrong result, so its earlier results may be wrong too. ``fingerprint``: its rates in the order of their names.
    """

    gpu_uuid: GpuUuid
    outcome: BurnInOutcome
    reasons: tuple[str, ...]
    undecided: tuple[str, ...]
    is_wrong: bool
    fingerprint: tuple[tuple[str, float], ...]


def verdict_of(figures: BurnInFigures, peers: Iterable[BurnInFigures], policy: BurnInPolicy) -> Verdict:
    """Return the verdict on ``figures``, an undecided one where there is no exact sum: that proves nothing.

    ``peers``: the newest figures of other GPUs, any key. A GPU is no peer of itself.
    """
    equals = [peer for peer in peers if peer.key == figures.key and peer.gpu_uuid != figures.gpu_uuid]
    wrong_sums = tuple(
        f"{each.name}: sum {each.measured}, exactly {each.golden}"
        for each in figures.partial_sums
        if each.measured != each.golden
    )
    wrong_bands, undecided = _compare_bands(figures, equals, policy)
    reasons = wrong_sums + wrong_bands + _grown(figures, policy) + _slow(figures, equals, policy)
    reasons += figures.vendor_failures
    is_open = not figures.partial_sums or (policy.needs_majority and bool(undecided))
    passed = BurnInOutcome.UNDECIDED if is_open else BurnInOutcome.PASSED
    return Verdict(
        gpu_uuid=figures.gpu_uuid,
        outcome=BurnInOutcome.FAILED if reasons else passed,
        reasons=reasons,
        undecided=undecided,
        is_wrong=bool(wrong_sums or wrong_bands),
        fingerprint=tuple(sorted(figures.rates.items())),
    )


def coverage_of(
    sums: Collection[str], rates: Collection[str], named: Collection[str] | None = None
) -> frozenset[FaultGroup]:
    """Return the fault groups that a burn-in tested, as its agent names them, or else as its results show.

    ``sums``, ``rates``: the names of its exact sums and rates. Agents of release 0.1.0 name no groups, and read no
    clocks under load. A group that is not known here, since the agent is newer, is left out.
    """
    if named is not None:
        return frozenset(group for group in FaultGroup if group in named)
    found = set[FaultGroup]()
    if any(name.startswith(MEMORY_SUMS) for name in sums):
        found.add(FaultGroup.MEMORY)
    if not all(name.startswith(MEMORY_SUMS) for name in sums):
        found |= {FaultGroup.DRIVER, FaultGroup.OTHER}
    if COPIES.issubset(rates):
        found.add(FaultGroup.BUS)
    return frozenset(found)


def finding_of(verdict: Verdict, node_id: NodeId, ended_ms: int, policy: HealthPolicy) -> Finding | None:
    """Return the condemning finding of a failed burn-in, None for any other."""
    if verdict.outcome is not BurnInOutcome.FAILED:
        return None
    return Finding(
        detector=NAME,
        version=VERSION,
        fault_key=f"{NAME}:{'wrong_result' if verdict.is_wrong else 'failed'}",
        gpu_uuid=verdict.gpu_uuid,
        node_id=node_id,
        severity=Severity.CONDEMNING,
        trust=Trust.MEASURED,
        source=Source.BURN_IN,
        onset_ms=ended_ms,
        counts_for_ms=counts_for_ms(Severity.CONDEMNING, policy, NAME),
        summary=f"burn-in failed: {'; '.join(verdict.reasons)}",
        threatens_correctness=verdict.is_wrong,
    )


def _compare_bands(
    figures: BurnInFigures, equals: list[BurnInFigures], policy: BurnInPolicy
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the bands that differ from the majority of their key, and the bands without a majority.

    The GPU's own digest counts too.
    """
    wrong: list[str] = []
    undecided: list[str] = []
    for band, digest in sorted(figures.bands.items()):
        votes = [digest, *(peer.bands[band] for peer in equals if band in peer.bands)]
        right = majority_of(votes, policy.quorum)
        if right is None:
            undecided.append(band)
        elif right != digest:
            wrong.append(f"{band}: its bits differ from {votes.count(right)} of {len(votes)} GPUs of its kind")
    return tuple(wrong), tuple(undecided)


def majority_of(votes: list[str], quorum: int) -> str | None:
    """Return the vote of more than half of at least ``quorum`` votes, else None."""
    if len(votes) < quorum:
        return None
    return next((vote for vote in sorted(set(votes)) if 2 * votes.count(vote) > len(votes)), None)


def _grown(figures: BurnInFigures, policy: BurnInPolicy) -> tuple[str, ...]:
    """Return a text for each counter that changed.

    A counter that fell was reset meanwhile: the run does not show that it was clean.
    """
    deltas = {name: figures.counter_deltas.get(name) for name in policy.clean_counters}
    return tuple(f"{name} changed by {delta:g}" for name, delta in deltas.items() if delta)


def _slow(figures: BurnInFigures, equals: list[BurnInFigures], policy: BurnInPolicy) -> tuple[str, ...]:
    found: list[str] = []
    for name, rate in sorted(figures.rates.items()):
        floor = policy.least_rates.get(name, 0.0)
        if rate < floor:
            found.append(f"{name} is {rate:g}, under {floor:g}, the least rate allowed for any GPU")
            continue
        rates = [peer.rates[name] for peer in equals if name in peer.rates]
        if len(rates) + 1 < policy.quorum:
            continue
        least = policy.slow_fraction * median(rates)
        if rate < least:
            found.append(f"{name} is {rate:g}, under {least:g} ({policy.slow_fraction:.0%} of its peers' median)")
    return tuple(found)
