"""Every suite has a smallest size, and a benchmark that hangs, fails or grows is found."""

import ast
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import smoke
from benchmarks.figures import SKIPPED, Basis, Figure
from benchmarks.runs import ROOT
from benchmarks.suites import SHORT, SUITES
from tests.waiting import wait_until

MODULES = sorted({module for modules in SUITES.values() for module in modules})


def tried(program: str, hangs_after_s: float = 60.0) -> smoke.Tried:
    return smoke._try("any", [sys.executable, "-c", program], hangs_after_s)


def test_one_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    child = f"import os, pathlib, signal; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); signal.pause()"
    found = tried(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])", hangs_after_s=2.0)
    assert found.fault == "HANGS: stopped after 2 s"
    pid = int(started.read_text())
    wait_until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    """Return whether the process exists and has not ended; one that only waits for its parent has ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_that_raises_fails_and_its_words_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert tried("raise SystemExit('the listener is not ready')").fault == "FAILED with exit code 1"
    assert "the listener is not ready" in capsys.readouterr().out


def test_one_whose_smallest_size_has_grown_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "LIMIT_CPU_S", 0.0)
    fault = tried("pass").fault
    assert fault is not None
    assert fault.startswith("TOO LARGE")


def test_one_that_lacks_its_hardware_reports_it_and_is_no_failure() -> None:
    found = tried(f"print('{SKIPPED}: no GPU')")
    assert (found.fault, found.words) == (None, f"{SKIPPED}: no GPU")


@pytest.mark.parametrize("values", [(), (float("nan"),), (1.0, float("inf"))])
def test_a_suite_without_figures_that_are_numbers_fails(values: tuple[float, ...]) -> None:
    with pytest.raises(AssertionError, match="the suite any"):
        smoke.require_measured("any", [Figure("x", value, "ms", None, basis=Basis.CPU) for value in values])


def test_no_bar_is_judged() -> None:
    assert smoke.without_bar(Figure("x", 9.0, "ms", 1.0, basis=Basis.CPU)).holds


@pytest.mark.parametrize("module", MODULES)
def test_each_benchmark_has_its_sizes_next_to_it_and_is_measured_at_one(module: str) -> None:
    """By its text: some import torch or a browser."""
    tree = ast.parse((ROOT / "benchmarks" / f"{module}.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert [argument.arg for argument in functions["measure"].args.args] == ["size"]
    assigned = [node for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    (sizes,) = (node.value for node in assigned if isinstance(node.target, ast.Name) and node.target.id == "SIZES")
    assert isinstance(sizes, ast.Call)
    assert len(sizes.args) + len(sizes.keywords) == 2


def test_each_suite_has_a_target_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in set(SUITES) - {"main"}:
        assert f"\nbench-{name.replace('_', '-')}: setup\n\t@$(BIN)/python -m benchmarks {name}\n" in makefile
    assert set(MODULES) >= SHORT
