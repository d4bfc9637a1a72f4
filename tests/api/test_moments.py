"""Times in bodies of requests: one that has no year in UTC is refused by its field, and the last one is no fault."""

from typing import Any

import pytest

from tests.api.conftest import Api

NO_YEAR = "9999-12-31T23:59:59-12:00"
LAST = "9999-12-31T23:59:59Z"
WHY = {"reason": "test"}


def bodies(api: Api) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return name → path with a dry run where there is one, field, and the rest of the body."""
    node, gpu = api.fleet.node_id, "GPU-alpha-0"
    chosen = {"selector": {"node_ids": [node]}, **WHY}
    return {
        "cordon": ("/v1/cordons", "until", {"node_id": node, **WHY}),
        "drain": (f"/v1/nodes/{node}/drain", "until", WHY),
        "maintenance": (f"/v1/nodes/{node}/maintenance", "until", WHY),
        "maintenance that starts": (f"/v1/nodes/{node}/maintenance", "starts_at", {"until": LAST, **WHY}),
        "override": (f"/v1/gpus/{gpu}/override", "until", {"standing": "SUSPECT", **WHY}),
        "key": ("/v1/keys", "expires_at", {"name": "late", "role": "auditor"}),
        "nodes cordoned": ("/v1/nodes/cordon", "until", chosen),
        "nodes drained": ("/v1/nodes/drain", "until", chosen),
        "jobs cancelled": ("/v1/jobs/cancel", "selector/until", {"selector": {"name": "x"}, **WHY}),
    }


NAMES = (
    *("cordon", "drain", "maintenance", "maintenance that starts", "override", "key"),
    *("nodes cordoned", "nodes drained", "jobs cancelled"),
)


def answer_of(api: Api, name: str, moment: str) -> tuple[int, str]:
    path, field, body = bodies(api)[name]
    *above, last = field.split("/")
    inner = {**body}
    target = inner
    for part in above:
        target[part] = {**target[part]}
        target = target[part]
    target[last] = moment
    answer = api.client.post(path, json=inner, headers=api.headers("operator"), params={"dry_run": "true"})
    return answer.status_code, answer.text


@pytest.mark.parametrize("name", NAMES)
def test_a_time_without_a_year_in_utc_is_refused_by_its_field(api: Api, name: str) -> None:
    status, text = answer_of(api, name, NO_YEAR)
    assert status == 422, text
    assert "must be in a year from 1 to 9999 in UTC" in text
    assert f'"/{bodies(api)[name][1]}"' in text


@pytest.mark.parametrize("name", NAMES)
def test_the_last_time_of_the_calendar_is_no_fault_of_ours(api: Api, name: str) -> None:
    status, text = answer_of(api, name, LAST)
    assert status < 500, text
