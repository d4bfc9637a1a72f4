"""``muster gpu`` and ``muster breaker`` over the real API: what they say fits 80 columns, what they do is done."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from control.policy.policies import ACTIVATE
from muster.cli.framework.exits import CommandError
from muster.cli.framework.names import shortened
from muster.cli.gpu import breakers, cohorts, gpus
from muster.cli.gpu.gpu_texts import gpu_lines
from muster.client.rest import RestClient
from muster.db.models import NodeLatest
from muster.domain.principals import system_principal
from tests.api.conftest import GOOD_JOB, Api
from tests.api.judged_fleet import GPU, OTHER, fault, show, trip
from tests.api.judged_fleet import api as api  # noqa: PLC0414  # both GPUs truly HEALTHY
from tests.fleet_factory import enrol_host

Type = Callable[..., str]


@pytest.fixture
def command(api: Api, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Return a function that types a command with the operator's key and returns its output."""
    client = RestClient("http://127.0.0.1", "mst_x")
    client.close()
    client._http = api.client  # the same requests, into the application
    api.client.headers.update(api.headers("operator"))

    @contextmanager
    def opened(*, as_operator: bool) -> Iterator[RestClient]:
        assert as_operator, "with the operator's key"
        yield client

    for module in (gpus, breakers, cohorts):
        monkeypatch.setattr(module, "open_client", opened)
    monkeypatch.setenv("COLUMNS", "80")

    def run(app: Any, *words: str, fails: bool = False) -> str:
        result = CliRunner().invoke(app, list(words))
        assert (result.exit_code != 0) is fails, result.output
        if isinstance(result.exception, CommandError):
            return str(result.exception)
        assert all(len(line) <= 80 for line in result.stdout.splitlines()), result.stdout
        return result.stdout

    return run


def test_the_list_shows_standing_and_score_and_takes_filters(api: Api, command: Type) -> None:
    fault(api)
    listed = command(gpus.app, "list")
    assert GPU in listed
    assert OTHER in listed
    for words in (["--standing", "quarantined"], ["--below", "50"]):
        filtered = command(gpus.app, "list", *words)
        assert GPU in filtered
        assert OTHER not in filtered
    assert "No GPU is like that." in command(gpus.app, "list", "--model", "abacus")


def test_show_states_what_it_stands_on_and_what_would_help(api: Api, command: Type) -> None:
    api.fleet.beat()
    fault(api)
    said = command(gpus.app, "show", "GPU-alpha-0")
    (evidence,) = show(api)["evidence"]
    for words in ("QUARANTINED", "score 0.0 (bad)", evidence["id"], "xid:95", "burn-in", "dismisses", "HEALTHY →"):
        assert words in said, said
    told = " ".join(said.split())
    assert "reserved: no: its standing is QUARANTINED, and this tier accepts HEALTHY" in told
    assert f"or a person dismisses: XID 95: uncorrectable memory error, not contained ({evidence['id']})" in told
    assert without_ages(command(gpus.app, "show", "alpha-0")) == without_ages(said), "as much as names it alone"


def without_ages(text: str) -> str:
    return re.sub(r"\b\d+s\b", "…", text)


def test_drift_is_reported_by_model_with_what_it_costs_and_on_request_where(api: Api, command: Type) -> None:
    assert "alike" in command(cohorts.app, "drift")
    beta = enrol_host(api.units, "beta", num_gpus=3)
    with api.units.begin(system_principal("judge"), ACTIVATE, quiet=True) as unit:
        unit.session.add(NodeLatest(node_id=beta, readings={"driver_version": "581"}))
    said = command(cohorts.app, "drift")
    assert "Simulated H100: 1 of 2 nodes on another driver_version" in said
    assert "most: 581; keeps 2 GPUs out of a gang with the rest" in said
    assert "0: 2 GPUs on 1 node" in said
    assert "alpha" not in said
    assert "alpha" in command(cohorts.app, "drift", "--nodes")


def test_what_names_no_gpu_or_several_is_stated(command: Type) -> None:
    assert "there is no GPU 'GPU-beta'" in command(gpus.app, "show", "GPU-beta", fails=True)
    assert "could be 2 GPUs" in command(gpus.app, "show", "GPU-alpha", fails=True)


def test_dismiss_is_tried_and_then_done(api: Api, command: Type) -> None:
    fault(api)
    (evidence,) = show(api)["evidence"]
    words = ("dismiss", GPU, evidence["id"], "--reason", "a bad cable")
    assert f"GPU {GPU} moves from QUARANTINED to HEALTHY" in command(gpus.app, *words, "--dry-run")
    assert show(api)["standing"] == "QUARANTINED"
    assert f"{GPU} is HEALTHY" in command(gpus.app, *words)
    assert "dismissed by" in command(gpus.app, "show", GPU)


def test_a_repair_a_retirement_and_a_return(api: Api, command: Type) -> None:
    fault(api)
    begun = command(gpus.app, "repair", GPU, "start", "--reason", "dimm", "--action", "swap", "--for", "memory")
    assert "is REPAIR" in begun
    assert "swap for memory" in command(gpus.app, "show", GPU)
    assert "is QUARANTINED" in command(gpus.app, "repair", GPU, "fail", "--reason", "no better")
    for step in ("finish", "fail"):
        with pytest.raises(CommandError, match=f"--by agent goes with start, not with {step}"):
            gpus.repair(GPU, step, "no better", by="agent")
    command(gpus.app, "repair", GPU, "start", "--reason", "again")
    assert "own: UNPROVEN" in command(gpus.app, "repair", GPU, "finish", "--reason", "new board")
    assert "is RETIRED" in command(gpus.app, "retire", OTHER, "--reason", "old")
    assert "own: UNPROVEN" in command(gpus.app, "reinstate", OTHER, "--reason", "needed")


def test_show_names_the_remedy_that_is_due_and_a_repair_without_an_action_takes_it(api: Api, command: Type) -> None:
    assert "Remedy due" not in command(gpus.app, "show", GPU)
    fault(api)
    told = " ".join(command(gpus.app, "show", GPU).split())
    assert "Remedy due: reset by a person, since its host does not allow its agent gpu_reset: XID 95:" in told
    assert "attempt 1 of 3 for memory, then reboot, field diagnosis, swap" in told
    verbs = {"protocol": 1, "boot_id": "boot-1", "verbs": ["gpu_reset"]}
    api.client.post("/v1/hosts/self/repairs/ask", json=verbs, headers=api.headers("node"))
    told = " ".join(command(gpus.app, "show", GPU).split())
    assert "Remedy due: reset by its agent (gpu_reset): XID 95:" in told
    assert "(NVIDIA's XID catalogue asks for it)" in told
    begun = " ".join(command(gpus.app, "repair", GPU, "start", "--reason", "as due", "--by", "agent").split())
    assert ": reset by its agent (gpu_reset) for memory, the remedy that is due" in begun
    command(gpus.app, "repair", GPU, "fail", "--reason", "no better")
    begun = " ".join(command(gpus.app, "repair", GPU, "start", "--reason", "as due").split())
    assert ": reboot for memory, the remedy that is due" in begun, "a reset did not last"
    command(gpus.app, "repair", GPU, "fail", "--reason", "no better")
    begun = command(gpus.app, "repair", GPU, "start", "--reason", "mine", "--action", "power_cycle")
    assert "power cycle for memory" in begun
    assert "due" not in begun


def test_a_board_whose_remap_failed_is_to_be_replaced(api: Api, command: Type) -> None:
    fault(api, code=64)
    told = " ".join(command(gpus.app, "show", GPU).split())
    assert "Remedy due: swap by a person, since it needs manual work: XID 64:" in told
    assert "have the board replaced, then `muster gpu retire`" in told


def test_a_repair_by_the_agent_is_ordered_taken_and_reported(api: Api, command: Type) -> None:
    fault(api)
    hands = {"reason": "x", "action": "swap", "by": "agent"}
    refused = api.client.post(f"/v1/gpus/{GPU}/repair", json=hands, headers=api.headers("operator"))
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/action"), refused.text
    command(gpus.app, "repair", GPU, "start", "--reason", "x", "--action", "reset", "--by", "agent", "--for", "memory")
    assert "reset by the agent (gpu_reset) for memory" in command(gpus.app, "show", GPU)
    (repair,) = show(api)["repairs"]
    assert (repair["by"], repair["verb"], repair["state"]) == ("agent", "gpu_reset", "ordered")
    said = {"protocol": 1, "boot_id": "boot-1"}
    answer = api.client.post("/v1/hosts/self/repairs/ask", json=said, headers=api.headers("node"))
    assert answer.json()["order"]["repair_id"] == repair["id"]
    assert show(api)["repairs"][0]["state"] == "under_way"
    ended = {**said, "outcome": "failed", "words": "this host does not allow gpu_reset", "is_simulated": True}
    url = f"/v1/hosts/self/repairs/{repair['id']}/report"
    told_of = [api.client.post(url, json=ended, headers=api.headers("node")).json()["is_taken"] for _ in range(2)]
    assert told_of == [True, False]
    assert "failed: this host does not allow gpu_reset" in " ".join(command(gpus.app, "show", GPU).split())
    assert show(api)["standing"] == "QUARANTINED"


def test_the_breaker_is_listed_and_closed(api: Api, command: Type) -> None:
    trip(api)
    assert "OPEN" in command(breakers.app, "list")
    assert "would be QUARANTINED, if the breaker lets it" in command(gpus.app, "show", OTHER)
    tried = command(breakers.app, "close", "fleet_window", "--reason", "seen", "--dry-run")
    assert "closes in fleet_window" in tried
    assert "breaker.closed" not in tried
    command(breakers.app, "close", "fleet", "--reason", "it is not the window", fails=True)
    assert "closed in fleet_window" in command(breakers.app, "close", "fleet_window", "--reason", "seen")
    assert "closed in cohort" in command(breakers.app, "close", "cohort", "--reason", "seen")


def test_names_are_shortened_only_as_far_as_they_differ() -> None:
    real = [f"GPU-{start}-0000-4000-8000-000000000001" for start in ("1a2b3c4d", "1a2b3c4e")]
    assert shortened(real) == {real[0]: "GPU-1a2b3c4d", real[1]: "GPU-1a2b3c4e"}
    alike = [f"GPU-51300000-000{host}-4000-8000-00000000000{end}" for host in (0, 1) for end in (1, 2)]
    assert shortened(alike)[alike[3]] == "GPU-51300000-0001..0002"
    assert shortened(["GPU-a", "GPU-b"]) == {"GPU-a": "GPU-a", "GPU-b": "GPU-b"}


def test_what_the_list_shows_names_its_gpu(api: Api, command: Type) -> None:
    del api
    assert "alpha-1" in command(gpus.app, "show", "GPU-..-1")


def test_a_busy_gpu_is_shown_as_admitted(api: Api) -> None:
    api.fleet.beat()
    api.fleet.submit(**{**GOOD_JOB, "shape": {"nodes": 1, "gpus_per_node": 2}})
    api.fleet.cycle()
    found = show(api)
    assert any(line.strip().startswith("spot: yes, busy: ") for line in gpu_lines(found))
    assert list(gpu_lines({name: value for name, value in found.items() if name != "admission"})), "an older server's"
