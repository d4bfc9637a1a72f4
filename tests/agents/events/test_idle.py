"""Activity of a GPU without a program, reported only where all samples of the window agree."""

from agents.events.idle import UTILISATION, IdleWindows
from agents.probes.interface import GpuCheck
from muster.domain.gpu.metrics import INDEX, NUM_METRICS
from muster.domain.ids import GpuUuid

GPU = GpuUuid("GPU-1")
COUNTED = {"idle_sm_percent": 97.0, "ecc_enabled": 1.0}


def check(*, percent: float | None = 99.0, programs: float | None = 0.0) -> GpuCheck:
    values: list[float | None] = [None] * NUM_METRICS
    values[INDEX["utilisation_percent"]], values[INDEX["num_processes"]] = percent, programs
    return GpuCheck(gpu_uuid=GPU, index=0, at_ms=0, values=tuple(values))


def reported(*checks: GpuCheck, sees_programs: bool = True) -> dict[str, float]:
    windows = IdleWindows(sees_programs)
    for each in checks:
        windows.saw([each])
    return windows.of(GPU, COUNTED)


def test_the_least_of_all_samples_is_reported() -> None:
    assert reported(check(), check(percent=93.0), check()) == {**COUNTED, UTILISATION: 93.0}


def test_a_program_in_any_sample_may_have_done_it_all() -> None:
    assert reported(check(), check(programs=1), check()) == {"ecc_enabled": 1.0}
    assert reported(check(), check(programs=None), check()) == {"ecc_enabled": 1.0}, "it is unknown"
    assert reported(*[check()] * 3, sees_programs=False) == {"ecc_enabled": 1.0}


def test_few_samples_or_one_that_does_not_report_state_nothing_of_utilisation() -> None:
    assert reported(check(), check()) == COUNTED
    assert reported(check(), check(percent=None), check()) == COUNTED


def test_each_window_is_checked_for_itself() -> None:
    windows = IdleWindows()
    windows.saw([check(programs=1)])
    assert windows.of(GPU, COUNTED) == {"ecc_enabled": 1.0}
    for _ in range(3):
        windows.saw([check(percent=95.0)])
    assert windows.of(GPU, COUNTED)[UTILISATION] == 95.0
