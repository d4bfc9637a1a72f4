"""Burn-in verdicts: exact sums, bits compared among equals, clean counters, speed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.burn_in import BurnInFigures, ComparisonKey, PartialSum, coverage_of, finding_of, majority_of, verdict_of
from muster.domain.evidence.findings import Severity, Source, Trust
from muster.domain.ids import GpuUuid
from muster.domain.states import BurnInOutcome
from tests.health.case_factory import NODE, NOW_MS, POLICY

KEY = ComparisonKey("NVIDIA H100", "580.65.06", "cublas 12.8")
RIGHT = PartialSum("bf16 tile 3", golden=123_456, measured=123_456)


def figures(name: str = "one", **changes: object) -> BurnInFigures:
    plain = BurnInFigures(
        gpu_uuid=GpuUuid(name),
        key=KEY,
        partial_sums=(RIGHT,),
        bands={"1e0": "aaaa"},
        counter_deltas={"ecc_uncorrected_volatile": 0.0, "pcie_replays": None},
        rates={"gemm_tflops": 795.0},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


PEERS = [figures(name) for name in ("p1", "p2", "p3")]


def test_a_gpu_that_computes_what_its_peers_do_passes() -> None:
    verdict = verdict_of(figures(), PEERS, POLICY.burn_in)
    assert (verdict.outcome, verdict.reasons, verdict.undecided) == (BurnInOutcome.PASSED, (), ())
    assert verdict.fingerprint == (("gemm_tflops", 795.0),)


def test_a_sum_that_is_not_exact_fails_and_is_wrong() -> None:
    verdict = verdict_of(figures(partial_sums=(RIGHT, replace(RIGHT, measured=123_457))), PEERS, POLICY.burn_in)
    assert verdict.outcome is BurnInOutcome.FAILED
    assert verdict.is_wrong
    assert verdict.reasons == ("bf16 tile 3: sum 123457, exactly 123456",)


def test_other_bits_than_the_majority_fail() -> None:
    verdict = verdict_of(figures(bands={"1e0": "bbbb"}), PEERS, POLICY.burn_in)
    assert (verdict.outcome, verdict.is_wrong) == (BurnInOutcome.FAILED, True)


def test_the_majority_passes_though_one_peer_differs() -> None:
    odd = figures("odd", bands={"1e0": "bbbb"})
    assert verdict_of(figures(), [*PEERS, odd], POLICY.burn_in).outcome is BurnInOutcome.PASSED


@pytest.mark.parametrize("key", [replace(KEY, driver="570"), replace(KEY, model="H200"), replace(KEY, library="x")])
def test_only_equals_are_compared(key: ComparisonKey) -> None:
    others = [replace(peer, key=key, bands={"1e0": "bbbb"}, rates={"gemm_tflops": 9000.0}) for peer in PEERS]
    verdict = verdict_of(figures(), others, POLICY.burn_in)
    assert (verdict.outcome, verdict.undecided) == (BurnInOutcome.PASSED, ("1e0",))


def test_without_a_majority_a_band_is_undecided_and_no_fault() -> None:
    split = [figures("p1", bands={"1e0": "bbbb"}), figures("p2", bands={"1e0": "cccc"})]
    verdict = verdict_of(figures(), split, POLICY.burn_in)
    assert (verdict.outcome, verdict.undecided) == (BurnInOutcome.PASSED, ("1e0",))
    strict = POLICY.burn_in.model_copy(update={"needs_majority": True})
    assert verdict_of(figures(), split, strict).outcome is BurnInOutcome.UNDECIDED


def test_a_burn_in_without_an_exact_sum_proves_nothing() -> None:
    assert verdict_of(figures(partial_sums=()), PEERS, POLICY.burn_in).outcome is BurnInOutcome.UNDECIDED


def test_a_gpu_is_no_peer_of_itself() -> None:
    old = [figures(bands={"1e0": "bbbb"})] * 5
    assert verdict_of(figures(), old, POLICY.burn_in).undecided == ("1e0",)


@pytest.mark.parametrize("name", ["ecc_uncorrected_volatile", "remapped_rows_corrected", "pcie_replays"])
@pytest.mark.parametrize("delta", [1.0, -3.0])
def test_counters_that_changed_fail_without_being_a_wrong_result(name: str, delta: float) -> None:
    verdict = verdict_of(figures(counter_deltas={name: delta}), PEERS, POLICY.burn_in)
    assert (verdict.outcome, verdict.is_wrong) == (BurnInOutcome.FAILED, False)


@pytest.mark.parametrize(("rate", "outcome"), [(676.0, BurnInOutcome.PASSED), (675.0, BurnInOutcome.FAILED)])
def test_a_gpu_far_slower_than_its_peers_fails(rate: float, outcome: BurnInOutcome) -> None:
    assert verdict_of(figures(rates={"gemm_tflops": rate}), PEERS, POLICY.burn_in).outcome is outcome


def test_what_fails_in_the_vendors_tests_fails_without_being_a_wrong_result() -> None:
    said = "diagnostic failed on GPU 3: row remap failure (DCGM 80)"
    verdict = verdict_of(figures(vendor_failures=(said,)), [], POLICY.burn_in)
    assert (verdict.outcome, verdict.reasons, verdict.is_wrong) == (BurnInOutcome.FAILED, (said,), False)


def test_a_wrong_result_condemns_and_threatens_correctness() -> None:
    verdict = verdict_of(figures(bands={"1e0": "bbbb"}), PEERS, POLICY.burn_in)
    found = finding_of(verdict, NODE, NOW_MS, POLICY)
    assert found is not None
    assert (found.severity, found.trust, found.source) == (Severity.CONDEMNING, Trust.MEASURED, Source.BURN_IN)
    assert found.threatens_correctness
    assert finding_of(verdict_of(figures(), PEERS, POLICY.burn_in), NODE, NOW_MS, POLICY) is None


@given(st.lists(st.sampled_from("abc"), max_size=9))
def test_a_majority_is_more_than_half_of_a_quorum(votes: list[str]) -> None:
    right = majority_of(votes, 3)
    winners = [vote for vote in set(votes) if votes.count(vote) * 2 > len(votes)]
    assert right == (winners[0] if winners and len(votes) >= 3 else None)


@pytest.mark.parametrize("name", ["copy_to_device_gb_per_s", "copy_to_host_gb_per_s"])
def test_a_pcie_copy_under_4_gb_per_s_fails_without_any_peer(name: str) -> None:
    slow, well = (verdict_of(figures(rates={name: rate}), [], POLICY.burn_in) for rate in (3.99, 4.0))
    assert slow.outcome is BurnInOutcome.FAILED
    assert slow.reasons == (f"{name} is 3.99, under 4, the least rate allowed for any GPU",)
    assert not slow.is_wrong
    assert well.outcome is BurnInOutcome.PASSED


SUMS = ("fp32 partial", "memory zeros")
COPIES = ("copy_to_device_gb_per_s", "copy_to_host_gb_per_s")


@pytest.mark.parametrize(
    ("sums", "rates", "covers"),
    [
        (SUMS, COPIES, {"driver", "other", "memory", "bus"}),
        (SUMS[:1], (), {"driver", "other"}),
        (SUMS[1:], COPIES[:1], {"memory"}),
        ((), (), set[str]()),
    ],
)
def test_where_an_agent_names_no_coverage_its_results_show_it(
    sums: tuple[str, ...], rates: tuple[str, ...], covers: set[str]
) -> None:
    """An agent of release 0.1.0: it reads no clocks under load, and uses no NVLink."""
    assert coverage_of(sums, rates) == covers


def test_the_coverage_that_an_agent_names_counts_without_what_this_release_does_not_know() -> None:
    assert coverage_of(SUMS, COPIES, ("clocks", "memory", "photonics")) == {"clocks", "memory"}
