"""What a shell completes: commands, options, and ids as the control plane knows them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import JOB, Command
from tests.recorded_server import Answer, problem, serving

pytestmark = pytest.mark.timeout(600)  # several processes each, on a machine that does ten things at once


def completed(folder: Path, words: str, url: str) -> list[str]:
    Command(folder)
    answer = subprocess.run(
        [sys.executable, "-m", "muster"],
        cwd=folder,
        env={
            "HOME": str(folder),
            "_MUSTER_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - (0 if words.endswith(" ") else 1)),
            "MUSTER_API_URL": url,
            "MUSTER_API_KEY_FILE": str(folder / "test.key"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert answer.stderr == ""
    return answer.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [("muster supp", "support-bundle"), ("muster job ca", "cancel"), ("muster job list --wa", "--watch")],
)
def test_commands_and_options_are_completed(tmp_path: Path, words: str, expected: str) -> None:
    assert expected in completed(tmp_path, words, "http://127.0.0.1:9")


def test_ids_are_completed_by_requesting_and_a_fault_completes_to_nothing(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, {"items": [JOB], "next_cursor": None})) as server:
        assert completed(tmp_path, "muster job show job_", server.url) == ["job_1"]
    with serving(lambda _asked, _number: problem(403, "forbidden")) as server:
        assert completed(tmp_path, "muster job show job_", server.url) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(tmp_path: Path, shell: str) -> None:
    answer = Command(tmp_path).run("completion", shell)
    assert answer.returncode == 0, answer.stderr
    assert "_MUSTER_COMPLETE" in answer.stdout


def test_a_shell_without_one_is_stated(tmp_path: Path) -> None:
    answer = Command(tmp_path).run("completion", "tcsh")
    assert answer.returncode == 2
    assert "bash" in answer.stderr
