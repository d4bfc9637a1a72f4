"""The origin of a checkpoint: found from files alone, git's hooks unasked, and compared on a resume."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from muster.cli.job.checkpoint_texts import lineage_words
from muster.train.checkpoint.lineage import Lineage, changes, code_of, commit_of
from muster.train.data.dataset_manifest import DataFile, DatasetManifest
from muster.train.data.datasets import Dataset

MADE_WITH = "the checkpoint was made with"


def git(tree: Path, *words: str) -> str:
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    environ = {"PATH": os.environ["PATH"], "HOME": str(tree), **names}
    command = [shutil.which("git") or "git", "-C", str(tree), *words]
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """In a work tree with one commit."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("print(1)\n", encoding="utf-8")
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "one")
    return tree / "train.py"


def data(*contents: str) -> Dataset:
    files = tuple(DataFile(name, 1, f"{number:064x}") for number, name in enumerate(contents))
    return Dataset(Path("/data"), Path("/data"), DatasetManifest(files))


def test_a_commit_and_whether_anything_was_changed_since(script: Path) -> None:
    commit = git(script.parent, "rev-parse", "HEAD")
    before = code_of(script)
    assert (before["git_commit"], before["git_is_dirty"]) == (commit, False)
    script.write_text("print(2)\n", encoding="utf-8")
    after = code_of(script)
    assert (after["git_commit"], after["git_is_dirty"]) == (commit, True)
    assert after["code_sha256"] != before["code_sha256"]


def test_a_packed_a_detached_and_a_linked_work_tree_report_their_commit(script: Path, tmp_path: Path) -> None:
    tree, commit = script.parent, git(script.parent, "rev-parse", "HEAD")
    git(tree, "worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    git(tree, "pack-refs", "--all")
    assert [commit_of(tree), commit_of(tmp_path / "linked")] == [commit, commit]
    git(tree, "checkout", "-q", "--detach")
    assert commit_of(tree) == commit


def test_no_hook_and_no_file_watcher_of_the_tree_is_run(script: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    watcher = tmp_path / "watcher"
    watcher.write_text(f"#!/bin/sh\ntouch {ran}\n", encoding="utf-8")
    watcher.chmod(0o755)
    hook = script.parent / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_bytes(watcher.read_bytes())
    hook.chmod(0o755)
    git(script.parent, "config", "core.fsmonitor", str(watcher))
    git(script.parent, "status")
    assert ran.exists(), "git itself would have run them"
    ran.unlink()
    assert code_of(script)["git_is_dirty"] is False
    assert not ran.exists()


def test_without_git_or_a_tree_the_script_is_reported_alone(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = code_of(script)
    assert (found["git_is_dirty"], found["git_commit"] is None) == (None, False)
    (script.parent / ".git").rename(script.parent / "git")
    found = code_of(script)
    assert (found["git_commit"], len(found["code_sha256"])) == (None, 64)
    assert set(code_of(None).values()) == {None}


def test_configuration_and_data_are_reported_by_hashes_that_hang_on_content_alone(script: Path) -> None:
    one = Lineage(
        {"lr": 0.1, "width": 8}, [data("a")], spec_sha256="f" * 64, bundle="b" * 64, script=script
    ).as_document(parent="", rng="seeded")
    same = Lineage({"width": 8, "lr": 0.1}, [data("a")], script=script).as_document(
        parent="step-00000004/gen-1", rng="saved"
    )
    other = Lineage({"lr": 0.2, "width": 8}, [data("a"), data("b")], script=script).as_document(parent="", rng="seeded")
    assert one["config_sha256"] == same["config_sha256"] != other["config_sha256"]
    assert one["data_sha256"] == same["data_sha256"] == data("a").sha256 != other["data_sha256"]
    assert (one["parent"], same["parent"]) == (None, "step-00000004/gen-1")
    assert one["config"] == {"lr": 0.1, "width": 8}
    assert (one["bundle"], same["bundle"]) == ("b" * 64, None)
    assert f"  bundle {'b' * 64}" in lineage_words(one)
    assert not any("bundle" in line for line in lineage_words(same))


@pytest.mark.parametrize("config", [{"a": object()}, [1], "x", {"a": float("nan")}])
def test_a_configuration_that_is_no_json_object_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="config must be"):
        Lineage(config, is_requested=False)


def test_what_is_known_of_both_and_other_is_stated_and_nothing_else() -> None:
    before = {"code_sha256": "a" * 64, "git_commit": None, "git_is_dirty": False, "config_sha256": "c" * 64}
    assert changes(before, dict(before)) == []
    assert changes(None, before) == []
    assert changes(before, {**before, "code_sha256": None, "git_commit": "d" * 40}) == [], "unknown on one side"
    now = {**before, "git_is_dirty": True, "config_sha256": "e" * 64, "data_sha256": "f" * 64}
    assert changes(before, now) == [
        ("code_changed", f"resumed with other code than {MADE_WITH}: git_is_dirty false → true"),
        (
            "config_changed",
            f"resumed with other configuration than {MADE_WITH}: config_sha256 cccccccccccc → eeeeeeeeeeee",
        ),
    ]
    assert changes({**before, "bundle": "a" * 64}, {**before, "bundle": "b" * 64}) == [
        ("code_changed", f"resumed with other code than {MADE_WITH}: bundle aaaaaaaaaaaa → bbbbbbbbbbbb")
    ], "a module of the work folder may be another one, though the script is the same"
