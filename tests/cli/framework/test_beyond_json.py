"""What a file in YAML holds that JSON has no word for is named by its place, with what is accepted."""

from pathlib import Path

import pytest

from muster.cli.framework.exits import CommandError
from muster.cli.framework.policy_files import policy_of_file
from muster.cli.sim.scenarios import decisions_of

NODES = "topology: {nodes: [{names: a, gpus: 8}]}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("about: !!binary aGVsbG8=\n" + NODES, "about: is binary: write text instead"),
        ("about: 2026-01-01\n" + NODES, "about: is a date: write it in quotes, as text, '2026-01-01'"),
        (
            "jobs: {queued: [{name: !!binary YQ==, gpus: !!set {8}}]}",
            "jobs.queued.0.name: is binary: write text instead; jobs.queued.0.gpus: is a set: write a list instead",
        ),
        ("topology: {2026-01-01: 8}", "topology: a key is a date: write it in quotes, as text, '2026-01-01'"),
        ("topology: &own {nodes: [*own]}", "holds a list or mapping within itself"),
    ],
)
def test_it_is_named_with_what_is_accepted(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    for read in (decisions_of, policy_of_file):
        with pytest.raises(CommandError) as caught:
            read(path)
        assert str(caught.value) == f"{path}: {words}"


def test_in_quotes_a_date_is_text(tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_text("about: '2026-01-01'\n" + NODES)
    assert decisions_of(path)["about"] == "2026-01-01"
