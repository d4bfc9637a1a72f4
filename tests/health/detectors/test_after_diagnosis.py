"""XIDs of programs that continue after a passed diagnosis: what warns, what is the GPU's, what the program's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from health.detectors.gpu.xid import IMAGE_MARK, TENANT_MARK, mark_of
from health.detectors.repeats import after_diagnosis
from health.remedy.requested_remedy import requested_remedies
from health.replay.replay import Replay
from health.replay.stream import Burned, Input, Moved, Moving, Passed, Placed, RepairBegan, RepairEnded
from health.standing.gpu_case import BurnInResult, GpuCase, PastRepair, diagnosed_ms_of
from muster.domain.evidence.findings import EventKind, Evidence, GpuSignal, Severity, Source
from muster.domain.evidence.repairs import RepairAction, RepairOutcome
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing
from tests.health.case_factory import DAY, GPU, HOUR, MINUTE, NODE, NOW_MS, POLICY, case, signal

OTHER = GpuUuid("GPU-other")
MMU_FAULT = "Ch 0000000c, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_4 faulted @ 0x7f5a_e7004000"
IN_ONE_TPC = "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address"
HOURS_APART = 4 * HOUR + 30 * MINUTE
ORDERED = 2
"""Deaths after which a diagnosis is ordered."""


def death(
    number: int,
    *,
    code: int = 31,
    text: str = MMU_FAULT,
    gpu: GpuUuid = GPU,
    at_ms: int | None = None,
    program: Mapping[str, str] | None = None,
) -> GpuSignal:
    """The XID of the program with that number. ``program``: the tenant and image that held the GPU."""
    at_ms = NOW_MS + number * HOURS_APART if at_ms is None else at_ms
    found = signal(code=code, at_ms=at_ms, source=Source.KERNEL_LOG, gpu=gpu, text=text)
    keys = {"tenant": TENANT_MARK, "image": IMAGE_MARK}
    return GpuSignal(
        f"{gpu}:{code}:{at_ms}",
        EventKind.XID,
        found.source,
        at_ms,
        NODE,
        gpu_uuid=gpu,
        code=code,
        text=text,
        values={keys[name]: mark_of(value) for name, value in (program or {}).items()},
    )


def burn_in(after: int, *, has_passed: bool = True) -> Burned:
    """A burn-in between the death with that number and the next."""
    began_ms = NOW_MS + after * HOURS_APART + HOUR
    return Burned(GPU, BurnInResult(began_ms, began_ms + 15 * MINUTE, has_passed=has_passed), NODE)


def in_time(given: Sequence[Input]) -> Iterator[Input]:
    yield Placed(NOW_MS - 60 * DAY, GPU, NODE, Standing.HEALTHY)
    yield from sorted(given, key=lambda each: each.at_ms)


def played(*given: Input, policy: HealthPolicy = POLICY) -> tuple[Replay, list[Standing]]:
    """The world an hour after the last input, and the standings to which the GPU moved."""
    world = Replay(policy)
    found = [each for one in in_time(given) for each in world.take(one)]
    found += world.take(Passed(world.now_ms + HOUR))
    return world, [each.move.to_standing for each in found if isinstance(each, Moved)]


def found_in(world: Replay) -> list[Evidence]:
    return [each for each in world.evidence() if each.detector == after_diagnosis.NAME]


def gpu_in(world: Replay) -> GpuCase:
    return world.gpus()[GPU]


def test_a_gpu_on_which_programs_of_different_names_die_is_suspect() -> None:
    """Fourteen in 60 hours, a burn-in passed after the second: records of a system that logs process names."""
    deaths = [death(number, text=f"pid={400 + 37 * number}, name=job{number}, {MMU_FAULT}") for number in range(14)]
    world, moves = played(*deaths, burn_in(1))
    assert moves == [Standing.SUSPECT]
    first = min(found_in(world), key=lambda each: (-each.severity, each.onset_ms))
    assert (first.severity, first.fault_key) == (Severity.DEGRADED, after_diagnosis.OF_PROGRAMS)
    assert first.onset_ms == deaths[ORDERED + 2].at_ms, "the third program since the diagnosis"
    (asked,) = {each.action for each in requested_remedies(gpu_in(world), world.now_ms, POLICY)}
    assert asked is RepairAction.FIELD_DIAGNOSIS


@pytest.mark.parametrize("mark", ["tenant", "image"])
@pytest.mark.parametrize(("num_programs", "moves"), [(2, []), (3, [Standing.SUSPECT])])
def test_three_tenants_or_images_since_the_diagnosis_are_the_gpus_fault(
    mark: str, num_programs: int, moves: list[Standing]
) -> None:
    deaths = [death(number, program={mark: f"of {number % num_programs}"}) for number in range(ORDERED, ORDERED + 5)]
    assert played(death(0), death(1), burn_in(1), *deaths)[1] == moves


def test_one_program_that_dies_again_and_again_only_warns() -> None:
    deaths = [death(number, program={"tenant": "ten_a", "image": "a:1"}) for number in range(14)]
    world, moves = played(*deaths, burn_in(1))
    assert moves == []
    assert [(each.severity, each.fault_key) for each in found_in(world)] == [(Severity.WARNING, after_diagnosis.NAME)]
    assert all(each.severity <= Severity.WARNING for each in world.evidence())


@pytest.mark.parametrize("between", [[], [burn_in(1, has_passed=False)]], ids=["none", "failed"])
def test_without_a_passed_diagnosis_they_ask_for_one_and_no_more(between: list[Input]) -> None:
    deaths = [death(number, program={"tenant": f"ten_{number}"}) for number in range(8)]
    world, _ = played(*deaths, *between)
    assert found_in(world) == []


def test_a_burn_in_from_before_the_first_death_is_no_answer_to_them() -> None:
    before = Burned(GPU, BurnInResult(NOW_MS - DAY, NOW_MS - DAY + HOUR, has_passed=True), NODE)
    world, _ = played(before, *(death(number, program={"tenant": f"ten_{number}"}) for number in range(8)))
    assert found_in(world) == []


def test_a_field_diagnosis_that_is_done_is_a_passed_diagnosis_too() -> None:
    done = PastRepair("other", NOW_MS, NOW_MS + HOUR, is_done=True, action=RepairAction.FIELD_DIAGNOSIS)
    repairs = [replace(done, is_done=False), replace(done, action=RepairAction.RESET), done]
    found = [diagnosed_ms_of(replace(case(Standing.HEALTHY), repairs=(each,))) for each in repairs]
    assert found == [None, None, NOW_MS]


def test_what_another_gpu_of_the_node_shows_too_is_the_programs() -> None:
    deaths = [death(number, program={"tenant": f"ten_{number}"}) for number in range(8)]
    others = [death(number, gpu=OTHER, at_ms=deaths[number].at_ms - 1) for number in range(2, 8)]
    world, moves = played(*deaths, *others, burn_in(1))
    assert (found_in(world), moves) == ([], [])


@pytest.mark.parametrize(("tpcs", "moves"), [((1, 1, 1), [Standing.SUSPECT]), ((1, 2, 4), [])])
def test_sm_exceptions_count_by_their_tpc(tpcs: tuple[int, ...], moves: list[Standing]) -> None:
    ordered = [death(number, code=13, text=IN_ONE_TPC) for number in range(ORDERED)]
    later = [
        death(number, code=13, text=IN_ONE_TPC.replace("TPC 1", f"TPC {tpc}"), program={"tenant": f"ten_{number}"})
        for number, tpc in enumerate(tpcs, start=ORDERED)
    ]
    assert played(*ordered, burn_in(1), *later)[1] == moves


def test_deaths_of_one_burst_by_three_tenants_are_three() -> None:
    """The GPU is given to one job after another within minutes."""
    began_ms = NOW_MS + 2 * HOURS_APART
    deaths = [death(2, at_ms=began_ms + number * MINUTE, program={"tenant": f"ten_{number}"}) for number in range(3)]
    assert played(death(0), death(1), burn_in(1), *deaths)[1] == [Standing.SUSPECT]


def test_the_rule_in_shadow_moves_nothing() -> None:
    shadow = HealthPolicy.model_validate({"detectors": {"repeats_after_diagnosis": {"mode": "shadow"}}})
    deaths = [death(number, program={"tenant": f"ten_{number}"}) for number in range(8)]
    world, moves = played(*deaths, burn_in(1), policy=shadow)
    assert moves == []
    assert found_in(world) != []


def test_another_burn_in_is_no_answer_and_a_field_diagnosis_is() -> None:
    """A burn-in has missed this fault, so that it passes again shows nothing; the repair that was asked for does."""
    deaths = [death(number, program={"tenant": f"ten_{number}"}) for number in range(5)]
    world, moves = played(*deaths, burn_in(1), burn_in(4))
    assert (moves, gpu_in(world).standing) == ([Standing.SUSPECT], Standing.SUSPECT)
    began_ms, ended_ms, person = world.now_ms + HOUR, world.now_ms + HOUR + 30 * MINUTE, ("asked for", "operator")
    proof = BurnInResult(ended_ms + MINUTE, ended_ms + HOUR, has_passed=True)
    for each in (
        Moving(began_ms, GPU, NODE, *person, Standing.QUARANTINED),
        RepairBegan(began_ms, GPU, NODE, *person, RepairAction.FIELD_DIAGNOSIS, "other"),
        RepairEnded(ended_ms, GPU, NODE, *person, began_ms, "other", RepairOutcome.DONE),
        Burned(GPU, proof, NODE),
    ):
        assert list(world.take(each)) != []
    assert gpu_in(world).standing is Standing.PROBATION
    assert requested_remedies(gpu_in(world), world.now_ms, POLICY) == ()
    done = PastRepair("other", began_ms, ended_ms, is_done=True, action=RepairAction.FIELD_DIAGNOSIS)
    assert gpu_in(world).repairs == (done,), "the replay knows the action as the judge does"
