"""The processes of a local stack's hosts, before they start."""

from pathlib import Path

import pytest

from local.hosts import host_children, simulated_hosts


@pytest.mark.parametrize("python", [None, "/opt/torch/bin/python"])
def test_agent_and_host_worker_run_jobs_with_the_interpreter_that_the_stack_was_given(
    python: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MUSTER_JOB_PYTHON", raising=False)
    if python is not None:
        monkeypatch.setenv("MUSTER_JOB_PYTHON", python)
    (host,) = simulated_hosts(["h100"], 1, tmp_path)
    children = host_children(host, api_url="url", broker_url="url", faults=tmp_path / "faults", state_dir=tmp_path)
    assert [child.variables.get("MUSTER_JOB_PYTHON") for child in children] == [python, python]
