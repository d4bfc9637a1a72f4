"""Burn-ins over REST: read, ordered, taken by a node's agent; and bodies that are never taken."""

import json
from typing import Any

import pytest

from control.health.burn_ins.verdicts import judge_burn_ins_once
from muster.domain.errors import REGISTRY
from tests.api.conftest import Api
from tests.control.burn_in_case import KEEPER

GPU = "GPU-alpha-0"
FIGURES: dict[str, Any] = {
    "model": "NVIDIA H100",
    "driver": "580-simulated",
    "library": "torch 2 on a CPU",
    "partial_sums": [{"name": "bf16 rows 1/8", "golden": -42, "measured": -42}],
    "bands": {"fp32 2^0": "a" * 64},
    "counter_deltas": {"nvlink_replays": None, "ecc_uncorrected_volatile": 0},
    "rates": {"gemm_bf16_tflops": 700.5},
    "took_s": 1.5,
    "is_simulated": True,
}


def order(api: Api, gpu: str = GPU, **headers: str) -> Any:
    url = f"/v1/gpus/{gpu}/burn-in"
    return api.client.post(url, json={"reason": "weekly"}, headers={**api.headers("operator"), **headers})


def ask(api: Api) -> dict[str, Any]:
    body = {"protocol": 1, "boot_id": "boot-1"}
    answer = api.client.post("/v1/hosts/self/burn-ins/ask", json=body, headers=api.headers("node"))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def report(api: Api, burn_in_id: str, content: str) -> Any:
    headers = {**api.headers("node"), "Content-Type": "application/json"}
    return api.client.post(f"/v1/hosts/self/burn-ins/{burn_in_id}/report", content=content, headers=headers)


def body(try_number: int = 1, **figures: Any) -> str:
    return json.dumps({"protocol": 1, "try_number": try_number, "figures": {**FIGURES, **figures}})


def test_an_order_is_taken_reported_and_read_with_its_figures(api: Api) -> None:
    made = order(api)
    assert (made.status_code, made.json()["state"]) == (201, "ORDERED")
    (given,) = ask(api)["orders"]
    assert (given["gpu_uuid"], given["burn_in_id"], given["try_number"]) == (GPU, made.json()["id"], 1)
    assert report(api, given["burn_in_id"], body()).json() == {"is_taken": True}
    assert report(api, given["burn_in_id"], body()).json() == {"is_taken": False}
    judge_burn_ins_once(api.units, KEEPER)
    shown = api.client.get(made.headers["location"], headers=api.headers("auditor")).json()
    assert (shown["state"], shown["outcome"], shown["is_simulated"]) == ("JUDGED", "passed", True)
    assert shown["figures"]["partial_sums"] == FIGURES["partial_sums"]
    assert shown["rates"] == {"gemm_bf16_tflops": 700.5}


def test_one_order_a_gpu_and_one_effect_a_key(api: Api) -> None:
    first = order(api, **{"Idempotency-Key": "again"})
    assert order(api, **{"Idempotency-Key": "again"}).json() == first.json()
    refused = order(api)
    assert (refused.status_code, refused.json()["burn_in_id"]) == (409, first.json()["id"])
    assert order(api, "GPU-nowhere").status_code == 404
    assert order(api, "GPU-%00").status_code == 404


def test_lists_are_filtered_and_paged(api: Api) -> None:
    for gpu in (GPU, "GPU-alpha-1"):
        order(api, gpu)
    operator = api.headers("operator")
    (of_one,) = api.client.get("/v1/burn-ins", params={"gpu": GPU}, headers=operator).json()["items"]
    assert of_one["gpu_uuid"] == GPU
    assert api.client.get("/v1/burn-ins", params={"state": "JUDGED"}, headers=operator).json()["items"] == []
    assert api.client.get("/v1/burn-ins", params={"outcome": "passed"}, headers=operator).json()["items"] == []
    node = {"node": api.fleet.node_id, "limit": 1}
    page = api.client.get("/v1/burn-ins", params=node, headers=operator).json()
    rest = api.client.get("/v1/burn-ins", params={**node, "cursor": page["next_cursor"]}, headers=operator).json()
    found = [item["gpu_uuid"] for item in page["items"] + rest["items"]]
    assert (sorted(found), rest["next_cursor"]) == ([GPU, "GPU-alpha-1"], None)
    for bad in ({"state": "BURNT"}, {"outcome": "good"}, {"limit": 0}, {"gpu": "a b"}):
        answer = api.client.get("/v1/burn-ins", params=bad, headers=operator)
        assert answer.status_code == 422, bad
        assert next(iter(bad)) in answer.text
    other = api.client.get("/v1/burn-ins", params={"cursor": page["next_cursor"]}, headers=operator)
    assert (other.status_code, other.json()["code"]) == (400, "invalid_cursor")


BAD_REPORTS: dict[str, tuple[str, str]] = {
    "NaN": (body().replace("700.5", "NaN"), "malformed"),
    "infinity": (body().replace("700.5", "1e999"), "rates"),
    "a string for a number": (body(took_s="1.5"), "took_s"),
    "a float for a sum": (body(partial_sums=[{"name": "a", "golden": 1.5, "measured": 1}]), "golden"),
    "a sum past 2^62": (body(partial_sums=[{"name": "a", "golden": 1 << 70, "measured": 1}]), "golden"),
    "U+0000": (body(model="a\x00b"), "model"),
    "a digest that is none": (body(bands={"fp32": "zz"}), "bands"),
    "an unknown field": (body(verdict="passed"), "verdict"),
    "10,000 sums": (body(partial_sums=[{"name": "a", "golden": 1, "measured": 1}] * 10_000), "partial_sums"),
    "neither figures nor a reason": ('{"protocol":1,"try_number":1}', "/figures"),
    "both": (body()[:-1] + ',"could_not_run":"x"}', "/figures"),
    "an empty reason": ('{"protocol":1,"try_number":1,"could_not_run":""}', "could_not_run"),
    "a try of 0": (body(0), "try_number"),
    "a real run of a simulated GPU": (body(is_simulated=False), "/figures/is_simulated"),
    "an array": ("[]", "object"),
    "nothing": ("", "JSON"),
}


@pytest.mark.parametrize("name", BAD_REPORTS)
def test_a_bad_report_is_refused_by_the_name_of_its_field_and_changes_nothing(api: Api, name: str) -> None:
    content, word = BAD_REPORTS[name]
    made = order(api).json()
    ask(api)
    answer = report(api, made["id"], content)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["code"] in REGISTRY
    assert word in answer.text
    shown = api.client.get(f"/v1/burn-ins/{made['id']}", headers=api.headers("operator")).json()
    assert (shown["state"], shown["figures"]) == ("RUNNING", None)


def test_a_report_of_what_the_node_has_not_is_404_and_another_protocol_is_reported_so(api: Api) -> None:
    assert report(api, "bi_00000000000000000000000000", body()).status_code == 404
    assert report(api, "x", body()).status_code == 404
    older = {"protocol": 0, "boot_id": "boot-1"}
    answer = api.client.post("/v1/hosts/self/burn-ins/ask", json=older, headers=api.headers("node"))
    assert answer.status_code == 426
    assert ask(api) == {"orders": [], "ask_again_s": 1.0}
