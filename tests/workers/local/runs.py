"""Jobs under ``muster run`` without its command, for tests and benchmarks: real supervisors and ranks."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from muster.domain.job.spec import JobSpec
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from muster.domain.policy.watch import WatchPolicy
from workers.local.local_run import LocalRun
from workers.local.plan import RunFolder, RunPlan


def ignore(_stream: str, _line: str) -> None:
    """Take a line of output, and show it nowhere."""


def run_job(
    folder: Path,
    program: dict[str, Any],
    watch: WatchPolicy,
    report: Callable[[str], None],
    show: Callable[[str, str], None] = ignore,
    *,
    ranks: int = 1,
    kernel: Callable[[int], tuple[tuple[str, ...], tuple[str, ...]]] = lambda _since_ms: ((), ()),
    **fields: Any,
) -> dict[str, Any]:
    """Run a job to its end, and return its document. ``folder``: of the run. ``fields``: further ones of the job.

    ``kernel``: faults in the kernel's log since a moment.
    """
    spec = JobSpec.model_validate(
        {"name": "job", "program": program, "shape": {"ranks_per_node": ranks}, "stop_grace_s": 1, **fields}
    )
    timers = replace(Timers.of(Policy()), retry_backoff_ms=10, retry_backoff_max_ms=10)
    plan = RunPlan(spec, (), sys.executable, timers, 1 << 20, 20, 600.0, watch=watch)
    place = RunFolder(folder, spec)
    try:
        return LocalRun(plan, place, report, show, kernel=kernel).run()
    finally:
        place.close()


@dataclass
class Runs:
    """Runs in one folder. ``reported``: sentences about them; the program waits for a file that shows one."""

    folder: Path
    reported: list[str] = field(default_factory=list)

    def run(self, program: dict[str, Any], watch: WatchPolicy, *, ranks: int = 1, **fields: Any) -> dict[str, Any]:
        return run_job(self.folder / "run", program, watch, self.note, ranks=ranks, **fields)

    def note(self, words: str) -> None:
        self.reported.append(words)
        for kind in ("hang: ", "makes progress"):
            if words.startswith(kind):
                self.file_of(kind).touch()

    def file_of(self, kind: str) -> Path:
        return self.folder / kind.strip(" :").replace(" ", "-")

    def sentences(self) -> list[str]:
        return [words for words in self.reported if words.startswith("hang: ")]
