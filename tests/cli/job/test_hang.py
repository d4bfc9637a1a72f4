"""``muster hang analyze`` on folders, called as a person calls it."""

import json
from pathlib import Path

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import Command


def _dump(newest: int) -> str:
    entries = [
        {"collective_seq_id": n, "profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"],
         "record_id": n, "retired": n < 5, "state": "scheduled", "input_sizes": [[8]], "input_dtypes": ["Float"]}
        for n in range(1, newest + 1)
    ]  # fmt: skip
    return json.dumps({"version": "2.10", "entries": entries})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank, newest in enumerate((5, 5, 4, 5)):
        (tmp_path / f"fr-{rank}.json").write_text(_dump(newest))
    (tmp_path / "rank-2.log").write_text(
        "\x1b]0;title\x07Traceback (most recent call last):\n"
        "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly\n"
    )
    (tmp_path / "odd.bin").write_bytes(b"\x00")
    return tmp_path


@pytest.fixture
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(tmp_path_factory.mktemp("home"))


def test_a_folder_gives_sentence_cause_waiting_ranks_and_evidence(command: Command, folder: Path) -> None:
    answer = command.run("hang", "analyze", str(folder), "--wide")
    assert (answer.returncode, answer.stderr) == (Exit.OK, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == (
        "Rank 2 lost a worker of its data loader: RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly; "
        "ranks 0, 1 and 3 wait in all_reduce, number 5 of group 0."
    )
    assert lines[1:4] == ["Cause: data_loader", "Waiting: 0-1, 3", "Evidence:"]
    assert "  - odd.bin: not used: its kind is unknown" in lines
    assert "\x1b" not in answer.stdout, "what a log holds does not drive the terminal"


def test_the_same_as_json_has_each_part_as_a_field(command: Command, folder: Path) -> None:
    found = json.loads(command.run("hang", "analyze", str(folder), "--json").stdout)
    assert (found["cause"], found["ranks"], found["waiting"]) == ("data_loader", [2], [0, 1, 3])
    assert found["notes"] == ["odd.bin: not used: its kind is unknown"]


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        (None, Exit.USAGE, "does not exist"),
        ({}, Exit.INVALID, "holds nothing that can be analysed"),
        ({"fr-1.json": '{"version": "2.10", "ent'}, Exit.INVALID, "fr-1.json: not used: it is no JSON"),
        ({"rank-0.log": "step 1\n", "rank-1.log": "step 1\n"}, Exit.FAILED, ""),
    ],
)
def test_a_folder_that_names_no_cause_has_an_exit_code_of_its_own(
    command: Command, tmp_path: Path, files: dict[str, str] | None, code: Exit, words: str
) -> None:
    folder = tmp_path / "kept"
    if files is not None:
        folder.mkdir()
    for name, content in (files or {}).items():
        (folder / name).write_text(content)
    answer = command.run("hang", "analyze", str(folder))
    assert answer.returncode == code
    assert words in answer.stderr
    if code == Exit.FAILED:
        assert answer.stdout.startswith("No evidence names a rank that holds up the others.")
