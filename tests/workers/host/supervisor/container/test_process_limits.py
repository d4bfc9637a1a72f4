"""Limits that a container gets for its processes."""

import resource
from pathlib import Path

from workers.host.supervisor.container.process_limits import podman_limits

SYS_RESOURCE = 1 << 24


def status(folder: Path, effective: int) -> Path:
    path = folder / "status"
    path.write_text(f"Name:\tmuster\nCapPrm:\t{SYS_RESOURCE:016x}\nCapEff:\t{effective:016x}\n")
    return path


def test_with_the_capability_the_engine_raises_its_own(tmp_path: Path) -> None:
    assert podman_limits(status(tmp_path, 0x1FFFFFFFFFF)) == ["--ulimit=host"]


def test_without_it_our_own_limits_are_named_and_nothing_above_them(tmp_path: Path) -> None:
    files, processes = podman_limits(status(tmp_path, 0x1FFFFFFFFFF & ~SYS_RESOURCE))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert files == f"--ulimit=nofile={soft}:{hard}"
    name, _, told = processes.partition("=nproc=")
    assert name == "--ulimit"
    bounds = [32_768 if each == resource.RLIM_INFINITY else each for each in resource.getrlimit(resource.RLIMIT_NPROC)]
    assert [int(each) for each in told.split(":")] == [min(each, 32_768) for each in bounds]


def test_a_kernel_that_states_nothing_has_given_nothing(tmp_path: Path) -> None:
    assert podman_limits(tmp_path / "none")[0].startswith("--ulimit=nofile=")
