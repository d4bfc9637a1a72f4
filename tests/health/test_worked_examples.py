"""The worked examples at the top of modules are what the modules do."""

import re
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

from health.evidence import bursts
from health.remedy import remedy
from health.standing import breaker, standing
from health.standing.gpu_case import BurnInResult, GpuCase, Move, MoveReason, PastRepair, moved
from muster.domain.evidence.repairs import RepairAction, RepairVerb
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing
from tests.health.case_factory import DAY, HOUR, MINUTE, NOW_MS, POLICY, as_fault, case, condemning, degraded, evidence

RESET_XID = 46
RACK = breaker.GpuPlace(rack="rack-1")


def example(module: ModuleType) -> list[str]:
    """The lines of the module's literal block, without its heading."""
    block = (module.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0]
    return [line.strip() for line in block.splitlines() if line.strip()]


def life(gpu: GpuCase, from_ms: int, until_ms: int) -> Iterator[tuple[GpuCase, Move | None]]:
    """The GPU after each of its moves, and at the end, by the rules alone."""
    at_ms: int | None = from_ms
    while at_ms is not None and at_ms <= until_ms:
        move = standing.decide(gpu, at_ms, POLICY)
        if move is None:
            at_ms = standing.next_evaluation_ms(gpu, at_ms, POLICY)
        else:
            gpu = moved(gpu, move)
            yield gpu, move
    yield gpu, None


def test_a_gpu_lives_as_the_standing_table_shows() -> None:
    moves: list[Move] = []

    def lived(gpu: GpuCase, from_h: int, until_h: int) -> GpuCase:
        for after, move in life(gpu, NOW_MS + from_h * HOUR, NOW_MS + until_h * HOUR):
            gpu = after
            moves.extend([] if move is None else [move])
        return gpu

    gpu = lived(case(Standing.HEALTHY, degraded("first"), since_ms=NOW_MS - 90 * DAY), 0, 30)
    gpu = lived(replace(gpu, evidence=(*gpu.evidence, condemning("second", NOW_MS + 30 * HOUR))), 30, 31)
    passed = BurnInResult(NOW_MS + 31 * HOUR, NOW_MS + 32 * HOUR, has_passed=True)
    lived(replace(gpu, burn_ins=(passed,)), 32, 1000)

    shown = [match.groups() for line in example(standing) if (match := re.match(r"([\d.]+)\s+(\w+) → (\w+)", line))]
    assert shown == [
        (f"{round((move.at_ms - NOW_MS) / HOUR, 1):g}", move.from_standing, move.to_standing) for move in moves
    ]


def test_the_heaviest_of_a_burst_are_those_that_are_apart() -> None:
    lines = example(bursts)
    minutes, weights = (list(map(int, re.findall(r"\d+", line[:22]))) for line in lines[:2])
    alike = [evidence(str(at), at_ms=NOW_MS + at * MINUTE) for at in minutes]
    assert POLICY.detectors.fatal_repeats.gap_s == 180
    heaviest = bursts.heaviest_apart(list(zip(alike, weights, strict=True)), POLICY)
    total = sum(weight for _, weight in heaviest)
    assert len(bursts.burst_of(alike, POLICY)) == 1
    assert lines[-1] == f"heaviest apart: 5 + 5 = {total}; the chain of all three would weigh {max(weights)}"


def test_a_remedy_is_due_as_the_ladder_shows() -> None:
    shown = [re.split(r"\s{2,}", line) for line in example(remedy)[1:]]
    tried = [(), (RepairAction.RESET,), (RepairAction.RESET, RepairAction.REBOOT), (RepairAction.OTHER,) * 3]
    found = [remedy.remedy_of(repaired(actions), frozenset(RepairVerb), NOW_MS, POLICY) for actions in tried]
    due = [(remedy.named(one.action), [remedy.named(each) for each in one.then]) for one in found if one is not None]
    assert due == [(action, [] if then == "nothing" else then.split(", ")) for _, action, then in shown]


def repaired(actions: tuple[RepairAction, ...]) -> GpuCase:
    """A GPU that an XID took out, after these repairs."""
    xid = as_fault(condemning("xid", NOW_MS - MINUTE), f"xid:{RESET_XID}")
    xid = replace(xid, values={"code": float(RESET_XID)})
    past = tuple(
        PastRepair("driver", NOW_MS - (9 - at) * HOUR, NOW_MS - (9 - at) * HOUR + MINUTE, is_done=True, action=action)
        for at, action in enumerate(actions)
    )
    return replace(case(Standing.QUARANTINED, xid), repairs=past)


def test_the_breaker_holds_its_cap_as_its_example_shows() -> None:
    def quarantine(number: int) -> Move:
        return Move(uuid(number), Standing.HEALTHY, Standing.QUARANTINED, NOW_MS, MoveReason.CONDEMNED)

    def uuid(number: int) -> GpuUuid:
        return GpuUuid(f"GPU-{number}")

    counts = breaker.FleetCounts(10_000, {"rack-1": 8}, places={uuid(number): RACK for number in range(1, 10)})
    cap = breaker.cap_of("rack:rack-1", counts, POLICY.breaker)
    first = breaker.admit(map(quarantine, range(1, cap + 1)), breaker.BreakerState(), counts, POLICY, NOW_MS)
    assert len(first.allowed) == cap
    over = breaker.admit([quarantine(cap + 1)], first.state, counts, POLICY, NOW_MS)
    assert over.proposed
    assert over.incident is not None
    assert set(over.incident.caps) == {"rack:rack-1"}
    again = breaker.admit([quarantine(cap + 2)], over.state, counts, POLICY, NOW_MS)
    assert again.proposed
    assert again.incident is None
    back = Move(uuid(1), Standing.QUARANTINED, Standing.PROBATION, NOW_MS, MoveReason.BURN_IN_PASSED)
    returned = breaker.admit([back, quarantine(cap + 2)], again.state, counts, POLICY, NOW_MS)
    assert returned.allowed == (back,)
    assert len(returned.proposed) == 1
    closed = breaker.close(returned.state, "rack:rack-1", NOW_MS + 1)
    assert len(breaker.admit([quarantine(9)], closed, counts, POLICY, NOW_MS + 2).allowed) == 1
