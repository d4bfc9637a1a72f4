"""The commit-msg hook: `area: imperative`, short, with the why in a body; each refusal says what to write."""

import os
import subprocess
from pathlib import Path
from shutil import copy, copytree, which

import pytest

from tools.commit_message import faults_of
from tools.git import set_up_hooks

ROOT = Path(__file__).resolve().parents[2]
GIT = which("git") or "git"


def git_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    named = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | named
    return subprocess.run([GIT, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "text",
    [
        "api: refuse an empty tenant name\n",
        "scheduler, health: keep a held gang's order\n\nA gang that is passed twice lost its turn.\n",
        "muster/cli: seed the key file\n",
        "tools: bring back the lock\n# Please enter the commit message\n",
        "\nci: run the smallest benchmarks\n",
        "Merge branch 'a'\n",
        'Revert "api: refuse an empty tenant name"\n',
        "fixup! api: refuse an empty tenant name\n",
        "docs: split the operator's page\n\nIt was long.\n",
        "deps: take torch 2.13\n\nhttps://example.org/" + "a" * 120 + "\n",
    ],
)
def test_good_messages_pass(text: str) -> None:
    assert faults_of(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "The message is empty"),
        ("# only a comment\n", "The message is empty"),
        ("No job leaves where planned work is over\n", "The subject has no area"),
        ("API: refuse an empty name\n", "The subject has no area"),
        (f"api: refuse {'a' * 61}\n", "The subject has 73 characters"),
        ("api: refuse an empty name.\n", "full stop"),
        ("api: added a field\n", "begins with 'added'"),
        ("api: fixing a field\n", "begins with 'fixing'"),
        ("api: the field is kept\n", "begins with 'the'"),
        ("api: refuse an empty name\nIt crashed.\n", "The second line is not blank"),
        (f"api: refuse an empty name\n\n{'word ' * 21}\n", "wrap it at 100"),
    ],
)
def test_other_messages_are_refused_with_what_to_write(text: str, fault: str) -> None:
    (found,) = faults_of(text)
    assert fault in found


def test_a_change_of_many_files_states_why() -> None:
    assert faults_of("api: refuse an empty name\n", changed=3) == []
    (fault,) = faults_of("api: refuse an empty name\n", changed=4)
    assert "4 files change and the message has no body" in fault
    assert faults_of("api: refuse an empty name\n\nIt crashed.\n", changed=4) == []


def test_what_stands_below_the_scissors_is_no_body() -> None:
    text = f"api: refuse an empty name\n# ------------------------ >8 ------------------------\n{'long ' * 40}\n"
    assert faults_of(text) == []


def test_git_refuses_a_message_by_the_hook_and_takes_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(ROOT / ".githooks", tmp_path / ".githooks")
    (tmp_path / "tools").mkdir()
    for name in ("commit_message.py", "git.py"):
        copy(ROOT / "tools" / name, tmp_path / "tools" / name)

    git_in(tmp_path, "init", "-q")
    monkeypatch.delenv("CI", raising=False)
    set_up_hooks(tmp_path)
    git_in(tmp_path, "add", "-A")
    refused = git_in(tmp_path, "commit", "-q", "-m", "Some changes.")
    assert refused.returncode != 0
    assert "The subject has no area" in refused.stderr
    assert git_in(tmp_path, "commit", "-q", "-m", "tools: add a hook").returncode == 0


@pytest.mark.parametrize(("has_own", "ci"), [(True, ""), (False, "true")])
def test_a_checkout_with_hooks_of_its_own_and_a_clone_of_ci_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_own: bool, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    git_in(tmp_path, "init", "-q")
    if has_own:
        git_in(tmp_path, "config", "core.hooksPath", "own")
    set_up_hooks(tmp_path)
    assert git_in(tmp_path, "config", "--get", "core.hooksPath").stdout.strip() == ("own" if has_own else "")
