"""The client held against the OpenAPI document: a call for every operation, every parameter, every field."""

import collections
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.client.described_calls import Sample, every_call
from tests.client.schema_shapes import shape_of
from tools.openapi_document import described

DOCUMENT = described()
CALLS = every_call()
NOT_OFFERED = {
    "if-none-match": "the client keeps no copies to compare with",
    "last-event-id": "the client resumes streams by itself",
}
KINDS: dict[type, set[str]] = {
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    str: {"string"},
    list: {"array"},
}
by_name = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)


def _operations_for_people() -> Iterator[tuple[str, str]]:
    """Yield all except the hosts' own, redirections, and operations without a key, other than a sign-in."""
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            words = operation["x-permission"]
            is_public = words.startswith("public") and not path.startswith("/v1/logins")
            if "307" in operation["responses"]:
                continue  # browsers follow it to a file; the client fetches a file's chunks
            if words != "host:report" and not is_public:
                yield method.upper(), path


def _operation(call: Sample) -> dict[str, Any]:
    method, path = call.operation
    operation: dict[str, Any] = DOCUMENT["paths"][path][method.lower()]
    return operation


def _parameters(call: Sample, place: str) -> dict[str, dict[str, Any]]:
    found = _operation(call).get("parameters", ())
    return {each["name"]: each for each in found if each["in"] == place}


def _streams(operation: dict[str, Any]) -> bool:
    return "text/event-stream" in operation["responses"]["200"]["content"]


def test_every_operation_has_one_call_and_one_more_where_it_streams() -> None:
    asked = collections.Counter(call.operation for call in CALLS if not call.is_followed)
    followed = collections.Counter(call.operation for call in CALLS if call.is_followed)
    for method, path in _operations_for_people():
        operation = DOCUMENT["paths"][path][method.lower()]
        answers = operation["responses"].get("201") or operation["responses"]["200"]
        is_asked = set(answers["content"]) != {"text/event-stream"}
        assert (asked[method, path], followed[method, path]) == (
            int(is_asked),
            int(_streams(operation) if method == "GET" else 0),
        )
    assert set(asked) | set(followed) == set(_operations_for_people()), "no call is of an operation that is not there"


@by_name
def test_a_call_offers_every_parameter_and_no_other(call: Sample) -> None:
    of_query = set(_parameters(call, "query"))
    others = [each for each in CALLS if each.operation == call.operation]
    offered = {name for each in others for name in each.given.query}
    assert offered == of_query
    assert set(call.given.path_values) == set(_parameters(call, "path"))
    headers = {name.lower() for name in _parameters(call, "header")} - set(NOT_OFFERED)
    if not call.given.is_repeatable:
        headers.discard("idempotency-key")
    sent = {name.lower() for name, value in call.given.headers.items() if value is not None}
    assert sent == headers


@by_name
def test_a_parameter_may_be_left_out_where_the_api_lets_it_and_has_its_type(call: Sample) -> None:
    for name, parameter in _parameters(call, "query").items():
        value = call.given.query.get(name)
        if value is not None:
            kinds = KINDS[type(value)]
            assert kinds & _kinds(parameter["schema"]), (name, value, parameter["schema"])
        if parameter.get("required"):
            assert call.least.query.get(name) is not None, name


def _kinds(schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        return _kinds(DOCUMENT["components"]["schemas"][schema["$ref"].split("/")[-1]])
    return {schema["type"]} if "type" in schema else {kind for each in schema["anyOf"] for kind in _kinds(each)}


@by_name
def test_an_answer_has_the_fields_that_the_api_states(call: Sample) -> None:
    responses = _operation(call)["responses"]
    for status in {"200", "201"} & set(responses):
        for media_type, content in responses[status]["content"].items():
            if media_type == "application/json" and not call.is_followed:
                schema = TypeAdapter(call.given.answer).json_schema()
                assert shape_of(schema, schema) == shape_of(content["schema"], DOCUMENT)
            if media_type == "text/plain":
                assert call.given.answer is str
    if call.given.item is not None:
        page, item = (TypeAdapter(each).json_schema() for each in (call.given.answer, call.given.item))
        assert shape_of(page["properties"]["items"]["items"], page) == shape_of(item, item)


@pytest.mark.parametrize("call", [call for call in CALLS if call.is_followed], ids=lambda call: call.name)
def test_a_stream_brings_what_the_same_events_are_by_the_page(call: Sample) -> None:
    name = call.given.answer.__name__
    words = _operation(call)["responses"]["200"]["content"]["text/event-stream"]["schema"]["description"]
    schema = TypeAdapter(call.given.answer).json_schema()
    assert name in words
    assert shape_of(schema, schema) == shape_of(DOCUMENT["components"]["schemas"][name], DOCUMENT)


@by_name
def test_a_body_has_the_fields_that_the_api_takes(call: Sample) -> None:
    body = _operation(call).get("requestBody")
    assert (call.given.body is None and call.given.content is None) == (body is None)
    if body is None or call.given.body is None:
        return
    schema = body["content"]["application/json"]["schema"]
    if call.body_type is not None:
        given = TypeAdapter(call.body_type).json_schema()
        assert shape_of(given, given) == shape_of(schema, DOCUMENT)
        return
    _, fields = shape_of(schema, DOCUMENT)
    assert set(call.given.body) == {name for name, _ in fields}
    assert {name for name, (is_required, _) in fields if is_required} <= {
        name for name, value in (call.least.body or {}).items() if value is not None
    }


def test_a_change_is_repeatable_by_its_key_unless_it_shows_a_secret_or_carries_one() -> None:
    for call in CALLS:
        takes_key = "idempotency-key" in {name.lower() for name in _parameters(call, "header")}
        if not takes_key:
            continue
        content = next(iter(_operation(call)["responses"]["200"]["content"].values()))
        _, fields = shape_of(content["schema"], DOCUMENT)
        shows_secret = bool({"token", "password", "secret"} & {name for name, _ in fields})
        has_secret = shows_secret or "encoding" in getattr(call.body_type, "__annotations__", {})
        assert call.given.is_repeatable != has_secret, call.name
        assert ("Idempotency-Key" in call.given.headers) != has_secret, call.name
