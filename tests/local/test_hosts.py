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


def test_hosts_build_environments_from_the_sources_that_the_stack_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"MUSTER_PACKAGE_INDEX": "http://pypi.lan/simple", "MUSTER_WHEELHOUSE": "/srv/wheels"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MUSTER_PACKAGE_INDEX_CA", raising=False)
    (host,) = simulated_hosts(["h100"], 1, tmp_path)
    for child in host_children(host, api_url="u", broker_url="u", faults=tmp_path / "faults", state_dir=tmp_path):
        assert given.items() <= child.variables.items()
        assert "MUSTER_PACKAGE_INDEX_CA" not in child.variables
