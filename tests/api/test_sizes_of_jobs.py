"""A job's size as a sum of GPUs, over the wire: planned, tried and submitted; and stated in two ways at once."""

from typing import Any
from uuid import uuid4

import pytest

from tests.api.conftest import GOOD_JOB, Api
from tests.fleet_factory import enrol_host


def sent(api: Api, path: str, shape: dict[str, Any], **query: str) -> tuple[int, dict[str, Any]]:
    headers = {**api.headers(), "Idempotency-Key": str(uuid4())}
    body = {"shape": shape} if path == "/v1/job-plans" else {**GOOD_JOB, "shape": shape}
    answer = api.client.post(path, json=body, headers=headers, params=query)
    found: dict[str, Any] = answer.json()
    return answer.status_code, found


@pytest.mark.parametrize("gpus", [1, 2, 7, 8])
def test_a_sum_of_gpus_is_planned_as_it_is_submitted(api: Api, gpus: int) -> None:
    enrol_host(api.units, "beta", num_gpus=8)
    status, plan = sent(api, "/v1/job-plans", {"gpus": gpus})
    assert status == 200, plan
    status, tried = sent(api, "/v1/jobs", {"gpus": gpus}, dry_run="true")
    assert status == 200, tried
    status, job = sent(api, "/v1/jobs", {"gpus": gpus})
    assert status == 201, job
    shape = job["spec"]["shape"]
    assert shape["nodes"] * shape["gpus_per_node"] == gpus


@pytest.mark.parametrize("path", ["/v1/job-plans", "/v1/jobs"])
@pytest.mark.parametrize("more", [{"nodes": 1}, {"gpus_per_node": 8}, {"nodes": 2, "max_nodes": 3}])
def test_a_size_stated_twice_is_refused_by_name(api: Api, path: str, more: dict[str, int]) -> None:
    status, refusal = sent(api, path, {"gpus": 8, **more})
    assert status == 422
    assert "takes `gpus` alone" in str(refusal)
    assert all(name in str(refusal) for name in more)
