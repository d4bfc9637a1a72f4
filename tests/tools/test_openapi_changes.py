"""What the comparison of two OpenAPI documents calls a break, and what it lets pass."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tools.openapi_changes import breaking_changes, unnamed

Document = dict[str, Any]
OLD: Document = {
    "paths": {
        "/v1/jobs": {
            "get": {
                "x-permission": "job:read",
                "parameters": [{"name": "state", "in": "query", "schema": {"$ref": "#/components/schemas/State"}}],
                "responses": {
                    "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Page"}}}}
                },
            },
            "post": {
                "x-permission": "job:submit",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewJob"}}},
                },
                "responses": {
                    "201": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}}}
                },
            },
        }
    },
    "components": {
        "schemas": {
            "State": {"type": "string", "enum": ["QUEUED", "ACTIVE"]},
            "Job": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "state": {"$ref": "#/components/schemas/State"},
                    "ended_at": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "loss": {"type": "number"},
                },
                "required": ["id", "state"],
            },
            "Page": {
                "type": "object",
                "properties": {"items": {"type": "array", "items": {"$ref": "#/components/schemas/Job"}}},
                "required": ["items"],
            },
            "NewJob": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "size": {"type": "number"}},
                "required": ["name"],
            },
        }
    },
}
Edit = Callable[[Document, Document], object]
"""Gets the paths' operations of /v1/jobs and the schemas."""

BREAKS: dict[str, tuple[Edit, list[str]]] = {
    "an operation that was removed": (lambda jobs, _: jobs.pop("post"), ["POST /v1/jobs: was removed"]),
    "a field that an answer has no more": (
        lambda _, schemas: schemas["Job"]["properties"].pop("loss"),
        ["GET /v1/jobs: answer/`items`/`loss` was removed", "POST /v1/jobs: answer/`loss` was removed"],
    ),
    "a field that may be missing": (
        lambda _, schemas: schemas["Job"]["required"].remove("id"),
        [
            "GET /v1/jobs: answer/`items`/`id` may be missing now",
            "POST /v1/jobs: answer/`id` may be missing now",
        ],
    ),
    "a field that may be null": (
        lambda _, schemas: schemas["Job"]["properties"]["id"].update(type=["string", "null"]),
        ["GET /v1/jobs: answer/`items`/`id` may be null now", "POST /v1/jobs: answer/`id` may be null now"],
    ),
    "a word that was removed": (
        lambda _, schemas: schemas["State"]["enum"].remove("ACTIVE"),
        [
            "GET /v1/jobs: `state`/`ACTIVE` is no longer among the words",
            "GET /v1/jobs: answer/`items`/`state`/`ACTIVE` is no longer among the words",
            "POST /v1/jobs: answer/`state`/`ACTIVE` is no longer among the words",
        ],
    ),
    "an input that is newly required": (
        lambda _, schemas: schemas["NewJob"]["required"].append("size"),
        ["POST /v1/jobs: body/`size` is required now"],
    ),
    "an input that was removed": (
        lambda _, schemas: schemas["NewJob"]["properties"].pop("size"),
        ["POST /v1/jobs: body/`size` is no longer taken"],
    ),
    "an input of a narrower type": (
        lambda _, schemas: schemas["NewJob"]["properties"]["size"].update(type="integer"),
        ["POST /v1/jobs: body/`size` may no longer be number"],
    ),
    "a parameter that is newly required": (
        lambda jobs, _: jobs["get"]["parameters"].append(
            {"name": "tier", "in": "query", "required": True, "schema": {"type": "string"}}
        ),
        ["GET /v1/jobs: `tier` is required now"],
    ),
    "a parameter that was removed": (
        lambda jobs, _: jobs["get"]["parameters"].clear(),
        ["GET /v1/jobs: `state` is no longer a parameter"],
    ),
    "another status": (
        lambda jobs, _: jobs["post"]["responses"].update({"202": jobs["post"]["responses"].pop("201")}),
        ["POST /v1/jobs: 201 is no longer answered"],
    ),
    "another permission": (
        lambda jobs, _: jobs["get"].update({"x-permission": "job:submit"}),
        ["GET /v1/jobs: permission was job:read, is job:submit"],
    ),
}
GROWTH: dict[str, Edit] = {
    "a new operation": lambda jobs, _: jobs.update(delete=copy.deepcopy(jobs["post"])),
    "a new field in an answer": lambda _, schemas: schemas["Job"]["properties"].update(tier={"type": "string"}),
    "a field that is always there from now on": lambda _, schemas: schemas["Job"]["required"].append("loss"),
    "a field that is never null from now on": lambda _, schemas: schemas["Job"]["properties"].update(
        ended_at={"type": "string"}
    ),
    "a new word": lambda _, schemas: schemas["State"]["enum"].append("HELD"),
    "a new input that may be left out": lambda _, schemas: schemas["NewJob"]["properties"].update(
        tier={"type": "string"}
    ),
    "an input that may be left out from now on": lambda _, schemas: schemas["NewJob"]["required"].clear(),
    "a whole number where any number was answered": lambda _, schemas: schemas["Job"]["properties"].update(
        loss={"type": "integer"}
    ),
}


def edited(edit: Edit) -> Document:
    new = copy.deepcopy(OLD)
    edit(new["paths"]["/v1/jobs"], new["components"]["schemas"])
    assert new != OLD
    return new


@pytest.mark.parametrize("case", BREAKS)
def test_what_breaks_a_client_is_named_where_it_breaks(case: str) -> None:
    edit, expected = BREAKS[case]
    assert [str(found) for found in breaking_changes(OLD, edited(edit))] == expected


@pytest.mark.parametrize("case", GROWTH)
def test_what_grows_breaks_nothing(case: str) -> None:
    assert breaking_changes(OLD, edited(GROWTH[case])) == []


def test_a_break_passes_once_the_changelog_names_it_and_nothing_else_does() -> None:
    breaks = breaking_changes(OLD, edited(lambda _, schemas: schemas["NewJob"]["required"].append("size")))
    assert unnamed(breaks, "- `POST /v1/jobs` needs `size`.") == breaks, "not declared to break"
    assert unnamed(breaks, "- Breaking: `POST /v1/jobs` needs `name`.") == breaks, "another field"
    assert unnamed(breaks, "- Breaking: `PUT /v1/jobs` needs `size`.") == breaks, "another operation"
    assert unnamed(breaks, "- Breaking: `POST /v1/jobs`\n  needs `size`.") == []
