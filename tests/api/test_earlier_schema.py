"""Reports of an agent of release 0.1.0, which knows fewer metrics: newer ones are unknown, and all else counts."""

import json
from typing import Any

import pytest
from sqlalchemy import select

from control.telemetry.codec import unpack_block, values_of
from muster.db.models import TelemetryBlock
from muster.domain.gpu.metrics import INDEX, NUM_METRICS, SCHEMA
from tests import telemetry_of_0_1_0 as earlier
from tests.api.conftest import Api
from tests.api.test_telemetry import now_ms, post
from tests.telemetry_reports import newest_readings

UNKNOWN = (None,) * (NUM_METRICS - len(earlier.VALUES))


def bent(schema: int, num_values: int) -> dict[str, Any]:
    """Return the report with another schema, and so many values of each GPU."""
    document: dict[str, Any] = json.loads(earlier.REPORT)
    for gpu in document["gpus"]:
        gpu["values"] = (gpu["values"] + [0.0] * num_values)[:num_values]
    return {**document, "schema": schema, "at_ms": now_ms()}


def test_a_report_of_release_0_1_0_counts_and_what_it_lacks_is_unknown(api: Api) -> None:
    body = earlier.REPORT.replace(str(earlier.REPORTED_MS).encode(), str(now_ms()).encode())
    answer = post(api, body)
    assert answer.status_code == 200, answer.text
    with api.units.read() as session:
        stored = session.scalars(select(TelemetryBlock)).one()
        newest = newest_readings(session)
    block = unpack_block(stored.content, stored.schema)
    assert (stored.schema, block.gpu_uuids) == (SCHEMA, earlier.GPUS)
    assert values_of(block.values[0]) == earlier.VALUES + UNKNOWN
    assert newest["GPU-alpha-0"].values == earlier.VALUES + UNKNOWN
    assert newest["GPU-alpha-1"].values == (None,) * NUM_METRICS


def test_an_unreadable_value_of_an_earlier_report_is_set_aside_as_of_a_present_one(api: Api) -> None:
    report = bent(1, 29)
    report["gpus"][0]["values"][INDEX["power_w"]] = "hot"
    answer = post(api, report)
    assert (answer.status_code, answer.json()["set_aside"]) == (200, ["GPU-alpha-0"])


@pytest.mark.parametrize(
    ("schema", "num_values", "status"),
    [
        (1, 29, 200),
        (1, 28, 422),
        (1, 30, 422),
        (2, 29, 422),
        (2, 30, 200),
        (3, 30, 422),
        (3, 32, 200),
        (0, 29, 426),
        (4, 33, 426),
        (-1, 29, 426),
    ],
)
def test_a_report_has_just_as_many_values_as_its_schema_has_metrics(
    api: Api, schema: int, num_values: int, status: int
) -> None:
    answer = post(api, bent(schema, num_values))
    assert answer.status_code == status, answer.text
    if status == 426:
        assert answer.json()["schema"] == SCHEMA
        assert "schemas 1 to 3" in answer.json()["detail"]
