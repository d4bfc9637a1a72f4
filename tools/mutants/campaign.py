"""Campaign that tries each mutant against its nearest tests, and checks that these tests pass without the mutant."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import Final

from tools.mutants.mutant import Mutant, Placed
from tools.mutants.nearness import NearestTests
from tools.mutants.placing import Checkout
from tools.mutants.trial import CPU_S, WARM, Bench, TrialResult

NUM_FILES: Final = 24
MAX_JOBS: Final = 2
NOT_PLACED: Final = TrialResult("not placed")


class Campaign:
    """A run over one checkout. The test that caught a mutant in ``before`` runs first.

    ``tests``: files to run instead of the nearest.
    """

    def __init__(
        self,
        root: Path,
        before: Mapping[str, TrialResult],
        jobs: int,
        *,
        cpu_s: float = CPU_S,
        warm: Sequence[str] = WARM,
        tests: Sequence[str] = (),
    ) -> None:
        self._root = root
        self._before = before
        self._jobs = max(1, min(jobs, MAX_JOBS))
        self._cpu_s = cpu_s
        self._warm = warm
        self._given = tests
        self._checkout = Checkout(root)
        self._nearest = NearestTests(root)
        self._free: SimpleQueue[Bench] = SimpleQueue()

    def run(self, mutants: Sequence[Mutant], on_result: Callable[[Mutant, TrialResult], None]) -> None:
        """Try all. ``on_result`` gets each result; a second one where the failed test fails without a change, too."""
        with ExitStack() as stack:
            benches = [stack.enter_context(Bench(self._root, self._warm)) for _ in range(self._jobs)]
            for bench in benches:
                self._free.put(bench)
            results = self._run_all(mutants, on_result, benches)
            unfair = self._unfair([one.by for one in results if one.is_caught and one.by])
            for mutant, one in zip(mutants, results, strict=True):
                if one.by in unfair:
                    sys.stdout.write(
                        f"{one.by} also fails without a change: the mutant is tried again without this test\n"
                    )
                    on_result(mutant, self._try(mutant, unfair))

    def _run_all(
        self, mutants: Sequence[Mutant], on_result: Callable[[Mutant, TrialResult], None], benches: Sequence[Bench]
    ) -> list[TrialResult]:
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                return list(pool.map(lambda mutant: self._report(mutant, on_result), mutants))
            except BaseException:
                # The pool waits for its threads, and these wait for the tests of their mutants.
                for bench in benches:
                    bench.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _report(self, mutant: Mutant, on_result: Callable[[Mutant, TrialResult], None]) -> TrialResult:
        result = self._try(mutant, ())
        on_result(mutant, result)
        return result

    def _try(self, mutant: Mutant, without: Sequence[str]) -> TrialResult:
        placed = self._checkout.place(mutant)
        if placed is None:
            return NOT_PLACED
        bench = self._free.get()
        try:
            words = [word for test in without for word in ("--deselect", test)]
            tests, first = self._tests(placed)
            return bench.try_mutant(placed, tests, first=first, words=words, cpu_s=self._cpu_s)
        finally:
            self._free.put(bench)

    def _tests(self, placed: Placed) -> tuple[list[str], str]:
        """Return the test files in the order in which they run, and the test that caught the mutant before."""
        if self._given:
            return [*self._given], ""
        nearest = self._nearest.of(placed, NUM_FILES)
        before = self._before.get(placed.mutant.key)
        first = "" if before is None or not before.by else find_test(self._root, before.by)
        file = first.partition("::")[0]
        return ([file] if file else []) + [path for path in nearest if path != file], first

    def _unfair(self, tests: Sequence[str]) -> list[str]:
        """Return the tests that fail on the product as it is."""
        alone = sorted(set(tests))
        if not alone:
            return []
        bench = self._free.get()
        try:
            return sorted(set(bench.try_unchanged(alone).failed) & set(alone))
        finally:
            self._free.put(bench)


def find_test(root: Path, test: str) -> str:
    """Return the test's present id without parameters; nothing where the test is missing or its name is not unique."""
    path, _, inner = test.partition("::")
    names = inner.partition("[")[0]
    if not names:
        return ""
    wanted = re.compile(rf"^\s*(?:async )?def {re.escape(names.rpartition('::')[2])}\(", re.MULTILINE)
    if (root / path).exists() and wanted.search((root / path).read_text(encoding="utf-8")):
        return f"{path}::{names}"
    holding = [one for one in sorted((root / "tests").rglob("test_*.py")) if wanted.search(one.read_text("utf-8"))]
    alike = [one for one in holding if one.name == PurePosixPath(path).name] or holding
    return f"{alike[0].relative_to(root).as_posix()}::{names}" if len(alike) == 1 else ""
