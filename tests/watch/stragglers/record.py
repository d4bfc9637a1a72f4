"""Records the reports of real gloo ranks that nothing slows, as noise for the tests of the judge.

``python -m tests.watch.stragglers.record`` writes ``recorded/N-ranks.json``: for each rank its reports, each a list of
``FIELDS``. The ranks compute in a busy loop on the processors that there are.
"""

import json
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from tests.train.train_case import HERE, Listening, Training, Zygote

RECORDED: Final = Path(__file__).with_name("recorded")
FIELDS: Final = ("step", "own_steps", "own_s", "wait_s", "data_s", "cpu_wait_s", "gc_s", "threads_s")
_NUM_STEPS: Final = 400


def record(zygote: Zygote, num_ranks: int, folder: Path) -> list[list[list[Any]]]:
    """Run the ranks, and return their reports."""
    arguments = ("nothing", "--steps", str(_NUM_STEPS), "--base-s", "0.03", "--busy-s", "0.03")
    with ExitStack() as stack:
        training = stack.enter_context(closing(Training(zygote, folder / "job")))
        sockets = [stack.enter_context(Listening(folder / f"{rank}" / "s")) for rank in range(num_ranks)]
        only = {rank: {"MUSTER_TRAIN_SOCKET": str(each.path)} for rank, each in enumerate(sockets)}
        program = HERE / "straggling_program.py"
        attempt = training.start(*arguments, num_ranks=num_ranks, program=program, only=only)
        assert attempt.ended() == [0] * num_ranks, [rank.errors for rank in attempt.ranks]
    reports = [[pace for pace in each.received("pace") if "own_s" in pace] for each in sockets]
    return [[[_rounded(pace.get(field)) for field in FIELDS] for pace in told] for told in reports]


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    with closing(Zygote()) as zygote:
        for num_ranks in map(int, sys.argv[1:] or ("2", "3", "4")):
            with tempfile.TemporaryDirectory() as folder:
                found = record(zygote, num_ranks, Path(folder))
            content = json.dumps({"fields": FIELDS, "ranks": found}, separators=(",", ":"))
            (RECORDED / f"{num_ranks}-ranks.json").write_text(content + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
