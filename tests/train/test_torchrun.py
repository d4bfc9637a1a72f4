"""The example under real torchrun: stopped by a signal to one rank, it continues bit for bit."""

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest

from .marks import TRAINS
from .train_case import HERE, ROOT, Training, under_torchrun, until

pytestmark = TRAINS
EXAMPLE = ROOT / "examples" / "train_transformer.py"
ARGUMENTS = ("--steps", "20", "--checkpoint-every", "0")


def losses_in(output: str) -> dict[int, str]:
    lines = (line.split() for line in output.splitlines() if line.startswith("step "))
    return {int(words[1]): words[3] for words in lines}


def test_the_example_learns_stops_and_goes_on_bit_for_bit(training: Training) -> None:
    process = under_torchrun(EXAMPLE, *ARGUMENTS, "--step-sleep", "1.0", folder=training.checkpoints)
    assert process.stdout is not None
    head = "".join(process.stdout.readline() for _ in range(3))
    # The last child of torchrun is rank 1: the word has to spread from there.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    os.kill(int(children[-1]), signal.SIGTERM)
    output, errors = process.communicate(timeout=180)
    before = losses_in(head + output)
    assert training.generations() == [f"step-{max(before):08d}/gen-1"], errors

    again = training.run(*ARGUMENTS, num_ranks=2, program=EXAMPLE, MUSTER_FENCE="")
    after = {step: words[1] for step, words in again.steps[0].items()}
    assert min(after) == max(before) + 1
    whole = training.run(*ARGUMENTS, num_ranks=2, program=EXAMPLE, MUSTER_CHECKPOINT_DIR="")
    undisturbed = {step: words[1] for step, words in whole.steps[0].items()}
    assert {**before, **after} == undisturbed
    assert float(undisturbed[20]) < float(undisturbed[1]) - 0.5, "it learns"


@pytest.mark.parametrize("reported", ["torchrun", "everybody"])
def test_loader_workers_outlive_the_signal_that_stops_their_rank(training: Training, reported: str) -> None:
    """A launcher passes SIGTERM on to the whole group of each rank, a service manager to all that it started."""
    program = HERE / "loading_program.py"
    process = under_torchrun(program, folder=training.checkpoints)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("step")
    below = psutil.Process(process.pid).children(recursive=True)
    found = {each: _parent_and_words(each) for each in below}
    ranks = [each for each, (parent, _) in found.items() if parent == process.pid]
    pids = {rank.pid for rank in ranks}
    loaders = [each for each, (parent, words) in found.items() if parent in pids and str(program) in words]
    assert (len(ranks), len(loaders)) == (2, 4)
    for each in loaders if reported == "everybody" else ():
        each.send_signal(signal.SIGTERM)
    for each in ranks if reported == "everybody" else ():
        each.send_signal(signal.SIGTERM)
    if reported == "torchrun":
        process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=180)
    assert "exited unexpectedly" not in errors
    last = max(int(line.split()[1]) for line in (first + output).splitlines() if line.startswith("step"))
    assert training.generations() == [f"step-{last:08d}/gen-1"], errors
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_loader_workers_that_are_new_interpreters_outlive_it_too_even_while_they_import(
    training: Training, method: str
) -> None:
    """The signal comes to each of them as soon as it is there, and again when their first batch was taken."""
    process = under_torchrun(HERE / "loading_program.py", method, folder=training.checkpoints)
    assert process.stdout is not None
    told: set[int] = set()
    until(lambda: len(_report_new_interpreters(process.pid, told)) >= 2, "workers", every_s=0.1)
    lines = [process.stdout.readline()]
    while not lines[-1].startswith("step"):
        assert lines[-1], process.stderr.read() if process.stderr else ""
        lines.append(process.stdout.readline())
    assert len([line for line in lines if line.startswith("ready")]) >= 1, "the program's own beginning of a worker"
    below = psutil.Process(process.pid).children(recursive=True)
    for each in below:
        if each.pid in told:
            each.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=180)
    assert "exited unexpectedly" not in errors
    assert "is killed by signal" not in errors
    steps = [int(line.split()[1]) for line in [*lines, *output.splitlines()] if line.startswith("step")]
    assert training.generations() == [f"step-{max(steps):08d}/gen-1"], errors
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive


def _parent_and_words(process: psutil.Process) -> tuple[int, list[str]]:
    """Return its parent and its command; 0 and none if it ended meanwhile, as short programs that torch starts do."""
    with contextlib.suppress(psutil.Error):
        return process.ppid(), process.cmdline()
    return 0, []


def _report_new_interpreters(torchrun_pid: int, reported: set[int]) -> set[int]:
    """SIGTERM to each process of multiprocessing's own below the ranks, the first time that it is seen."""
    for each in psutil.Process(torchrun_pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(each.cmdline())
            is_worker = "multiprocessing.spawn" in command or "multiprocessing.forkserver" in command
            if is_worker and each.pid not in reported:
                each.send_signal(signal.SIGTERM)
                reported.add(each.pid)
    return reported
