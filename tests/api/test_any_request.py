"""Whatever is asked, the API answers with a documented status and a document that fits its schema, and never fails.

Schemathesis makes requests out of the OpenAPI document, valid ones and broken ones, for objects that are there and for
any others; they meet a real database. ``MUSTER_API_CASES`` says how many, and without it none are made: 1,500 are the
same on every run, with more each run is another, and ``MUSTER_API_SEED`` repeats one.
"""

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.conformance import Conformance
from tests.api.conftest import Api
from tests.api.judged_fleet import api as judged_api
from tests.api.lived_in import ids_of_a_lived_in_fleet

CASES: Final = int(os.environ.get("MUSTER_API_CASES", "0"))
SEED: Final = int(os.environ.get("MUSTER_API_SEED", "0")) or (time.time_ns() % 2**32 if CASES > 1500 else 0)
SHARES: Final = {"operator": 0.5, "tenant_admin": 0.35, "node": 0.15}
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ENDLESS: Final = {"/v1/events/stream"}
"""A stream has no end to wait for; its own tests follow it."""
Operation = APIOperation[Any, Any, Any, Any]
api = judged_api


class Requesting:
    """Sends what Schemathesis made as ``actor``, and counts."""

    def __init__(self, api: Api, actor: str) -> None:
        self._api = api
        self.actor = actor
        self.num = 0

    def __call__(self, case: Case[Any]) -> None:
        if isinstance(case.query, dict):
            case.query.pop("follow", None)
        request = requests.Request(**case.as_transport_kwargs(base_url="http://127.0.0.1")).prepare()
        headers = {name: value for name, value in request.headers.items() if name.lower() != "authorization"}
        answer = self._api.client.request(
            str(request.method),
            str(request.url),
            headers={**{name: _bytes(value) for name, value in headers.items()}, **self._api.headers(self.actor)},
            content=request.body,
        )
        self.num += 1
        case.validate_response(answer, checks=CHECKS)


def _bytes(value: str | bytes) -> bytes:
    return value.encode("latin-1", "replace") if isinstance(value, str) else value


def _operations(document: Mapping[str, Any], actor: str) -> Iterator[Operation]:
    """A node's own for the node, the others for people."""
    for result in schemathesis.openapi.from_dict(dict(document)).get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        words = document["paths"][operation.path][operation.method.lower()]["x-permission"]
        if operation.path not in ENDLESS and (words == "host:report") == (actor == "node"):
            yield operation


@pytest.mark.skipif(not CASES, reason="MUSTER_API_CASES says how many requests")
@pytest.mark.timeout(max(900, CASES))
@pytest.mark.parametrize("actor", SHARES)
def test_no_request_fails_the_api_or_gets_an_answer_it_does_not_document(
    api: Api, conformance: Conformance, actor: str
) -> None:
    ids = ids_of_a_lived_in_fleet(api)
    asking = Requesting(api, actor)
    operations = list(_operations(conformance.document, actor))
    wanted = round(CASES * SHARES[actor])
    ways = list(itertools.product((GenerationMode.POSITIVE, GenerationMode.NEGATIVE), (True, False)))
    left = len(operations) * len(ways)
    for operation, (mode, is_there) in itertools.product(operations, ways):
        num_examples = -(-(wanted - asking.num) // left)
        left -= 1
        if num_examples > 0:
            _ask(asking, operation, mode, ids if is_there else {}, num_examples)
    assert asking.num >= wanted * 0.9


def _ask(
    requesting: Requesting,
    operation: Operation,
    mode: GenerationMode,
    ids: dict[str, str],
    num_examples: int,
) -> None:
    """``ids``: of objects that are there, where the path names one."""
    named = {name: value for name, value in ids.items() if f"{{{name}}}" in operation.path}
    cases = operation.as_strategy(generation_mode=mode, path_parameters=named or None)

    @settings(
        max_examples=num_examples,
        database=None,
        derandomize=not SEED,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def ask(case: Case[Any]) -> None:
        requesting(case)

    try:
        (seed(SEED)(ask) if SEED else ask)()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "an operation without parameters cannot be asked wrongly"
    except Exception as error:
        error.add_note(f"{operation.label}, asked as {requesting.actor}; MUSTER_API_SEED={SEED} repeats it")
        raise
