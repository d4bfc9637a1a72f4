"""``muster up`` refuses what it cannot start before it starts anything."""

from pathlib import Path

import pytest

from muster.cli.framework.exits import Exit
from muster.cli.host.up import TOUR_POLICY
from tests.cli.command import Command


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--hosts", "h100,b300"), "--hosts names b300"),
        (("--hosts", ","), "--hosts names none"),
        (("--hosts", "h100", "--tour"), "the tour is about h100,h100,a100,a100 with 8 GPUs each"),
        (("--hosts", "h100", "--soak", "5"), "the soak is about h100,h100,a100,a100 with 8 GPUs each"),
        (("--soak", "5", "--tour"), "--soak is instead of the tour"),
        (("--soak", "5", "--tour", "watch"), "--soak is instead of the tour"),
        (("--tour", "watch", "--gpus", "4"), "the tour is about h100,h100 with 8 GPUs each"),
        (("--no-tour", "watch"), "--no-tour leaves out the tour watch"),
        (("--tour", "fast"), "'fast' is not one of 'fleet', 'watch'"),
        (("--soak", "0"), "--soak"),
        (("--hosts", "h100", "--exit"), "--exit needs the tour"),
        (("--no-tour", "--exit"), "--exit needs the tour"),
        (("--gpus", "0"), "--gpus"),
        (("--policy", "nothing.yaml"), "nothing.yaml"),
    ],
)
def test_what_cannot_be_is_a_usage_fault(muster: Command, words: tuple[str, ...], reported: str) -> None:
    answer = muster.run("up", *words)
    assert answer.returncode == Exit.USAGE
    assert reported in answer.stderr
    assert not (muster.folder / ".muster").exists()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("contact: {heartbeat_s: -1}", "contact.heartbeat_s"),
        ("contact: [", "cannot be read as YAML"),
        ("nonsense: 1", "nonsense"),
        ("- 1", "policy.yaml"),
    ],
)
def test_a_policy_that_does_not_hold_is_refused_by_field(muster: Command, text: str, reported: str) -> None:
    (muster.folder / "policy.yaml").write_text(text, encoding="utf-8")
    answer = muster.run("up", "--policy", "policy.yaml")
    assert answer.returncode == Exit.USAGE
    assert reported in answer.stderr


def test_real_gpus_are_requested_before_anything_starts(muster: Command) -> None:
    """Where this machine has none; with a driver it would start."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("THIS MACHINE HAS AN NVIDIA DRIVER: the refusal is not tested here")
    answer = muster.run("up", "--real")
    assert answer.returncode == Exit.NOT_FOUND
    assert "NVML" in answer.stderr or "driver" in answer.stderr


def test_the_tours_policy_is_one() -> None:
    assert TOUR_POLICY.exists()
