"""The CI workflow is one by its schema, calls `.ci/run`, and names each action by a version."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
WORKFLOW: Final = ROOT / ".github" / "workflows" / "ci.yml"


def test_the_workflow_is_one_by_its_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", "-o", "TEXT"]
    done = subprocess.run([*command, str(WORKFLOW)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_it_runs_what_is_run_anywhere() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    assert "- run: .ci/run\n" in text
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_each_action_is_named_by_a_version() -> None:
    actions = re.findall(r"uses: (\S+)", WORKFLOW.read_text(encoding="utf-8"))
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w-]+/[\w-]+@v\d+", action)] == []
