"""Examples of bodies and answers in OpenAPI: written for requests that persons send, made from the schema for others.

Every example fits its schema; a test holds that.
"""

from typing import Any, Final

MOST_DEPTH: Final = 4
"""Lists below so many objects are empty in an example, if they may be."""
_JOB: Final = {
    "name": "finetune",
    "tier": "on_demand",
    "program": {"script": "/srv/code/train.py", "args": ["--epochs", "3"]},
    "shape": {"nodes": 2, "gpus_per_node": 8},
    "wall_time_s": 7200,
}
_REASON: Final = {"reason": "replaced at rack r12, ticket 4711"}
BODIES: Final[dict[str, Any]] = {
    "activate_policy": {"document": {"reclaim": {}}, "reason": "shorter notice for spot"},
    "cancel_jobs": {"selector": {"tier": "spot", "label": ["sweep=7"]}, "reason": "the sweep is wrong", "expected": 12},
    "cancel_job": {"reason": "wrong learning rate"},
    "check_policy": {"document": {"reclaim": {}}},
    "close_breaker": {"scope": "fleet", **_REASON},
    "close_incident": _REASON,
    "cordon_nodes": {"selector": {"rack": "r12"}, "reason": "new switch", "expected": 8},
    "create_cordon": {"node_id": "node_01jd3b8h2v5w6x7y8z9a0b1c2d", "reason": "new fan"},
    "create_join_token": {"host_name": "gpu-r12-03", "expires_in_s": 3600},
    "create_key": {"name": "ci", "role": "tenant_member"},
    "create_person": {"name": "dana", "role": "operator"},
    "create_tenant": {"name": "vision"},
    "dismiss_evidence": _REASON,
    "dismiss_verdict": {"reason": "an evaluation of two hours, as each week"},
    "drain_nodes": {"selector": {"rack": "r12"}, "reason": "new switch", "expected": 8, "deadline_s": 900},
    "drain_node": {"reason": "firmware of the switch"},
    "fail_repair": _REASON,
    "finish_repair": _REASON,
    "hold_job": {"reason": "its data set is being replaced"},
    "hold_jobs": {"selector": {"label": ["sweep=7"]}, "reason": "its data set is being replaced", "expected": 12},
    "label_node": {"labels": {"zone": "north"}, "reason": "moved to hall 2"},
    "order_burn_in": {"reason": "after a change of cables"},
    "override_gpu": {"standing": "QUARANTINED", "reason": "smells of smoke", "until": "2026-12-03T09:00:00Z"},
    "plan_job": _JOB,
    "reinstate_gpu": _REASON,
    "release_cordon": _REASON,
    "release_jobs": {"selector": {"tenant_id": "ten_01jd3b8h2v5w6x7y8z9a0b1c2d"}, "reason": "repaired", "expected": 3},
    "release_job": {"reason": "the data set is there now"},
    "release_override": _REASON,
    "retire_gpu": _REASON,
    "retry_jobs": {
        "selector": {"state": ["FAILED"], "since": "2026-11-26T09:00:00Z"},
        "reason": "the file server is back",
        "expected": 9,
    },
    "set_residency": {"sites": ["ams"], "stores": ["main", "s3://acme-ams"], "reason": "contract of 2027"},
    "set_rates": {
        "document": {
            "currency": "EUR",
            "cards": [
                {
                    "model": "NVIDIA H200",
                    "tier": "on_demand",
                    "begins_at": "2027-01-01T00:00:00Z",
                    "price_per_gpu_hour": "2.75",
                }
            ],
        },
        "reason": "prices of 2027",
    },
    "lift_tenant_budget": {"reason": "the month is paid"},
    "set_tenant_budget": {"amount": "25000", "action": "no_new_jobs", "reason": "contract of 2027"},
    "set_quota": {"guaranteed_gpus": 64, "ceiling_gpus": 128, "reason": "contract of 2027"},
    "submit_job": _JOB,
    "uncordon_nodes": {"selector": {"rack": "r12"}, "reason": "the switch is new", "expected": 8},
}
"""By operation: a body that does something which is often wanted."""
_DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_SAMPLES: Final[dict[str, Any]] = {
    "actor": "dana",
    "address": "10.0.12.3",
    "bundle": _DIGEST,
    "built": _DIGEST,
    "bundles": f"ten_01jd3b8h2v5w6x7y8z9a0b1c2d/{_DIGEST}",
    "chunks": _DIGEST,
    "digest": _DIGEST,
    "digests": _DIGEST,
    "files": "MANIFEST.json",
    "uploaded": _DIGEST,
    "attempt_id": "att_01jd3b8h2v5w6x7y8z9a0b1c2d",
    "boot_id": "0b6f4d6e-6a3b-4a6e-9a55-0d6d0c9f2f11",
    "created_by": "dana",
    "driver_version": "580.95.05",
    "id": "01jd3b8h2v5w6x7y8z9a0b1c2d",
    "gpu": "GPU-5f2c1f0e-3c86-4f8e-9d8c-2f8d4c1b7a10",
    "gpu_uuid": "GPU-5f2c1f0e-3c86-4f8e-9d8c-2f8d4c1b7a10",
    "host_name": "gpu-r12-03",
    "job_id": "job_01jd3b8h2v5w6x7y8z9a0b1c2d",
    "job_name": "finetune",
    "model": "NVIDIA H200",
    "name": "finetune",
    "node_id": "node_01jd3b8h2v5w6x7y8z9a0b1c2d",
    "node_name": "gpu-r12-03",
    "rack": "r12",
    "rdma_ports": "mlx5_0/1",
    "reason": "replaced at rack r12, ticket 4711",
    "stream": "launcher",
    "submitted_by": "dana",
    "tenant_id": "ten_01jd3b8h2v5w6x7y8z9a0b1c2d",
    "tier": "on_demand",
    "uuid": "GPU-5f2c1f0e-3c86-4f8e-9d8c-2f8d4c1b7a10",
}
_MOMENT: Final = "2026-11-26T09:30:00Z"


def add_examples(document: dict[str, Any]) -> None:
    """Add an example to each JSON body and answer of an OpenAPI document.

    A written one stands with its operation. The others stand with their schema, which many operations answer with.
    """
    schemas = document["components"]["schemas"]
    for operations in document["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                if operation["operationId"] in BODIES:
                    content["example"] = BODIES[operation["operationId"]]
                else:
                    _add_sample(content, schemas)
            for status in ("200", "201"):
                content = operation["responses"].get(status, {}).get("content", {}).get("application/json")
                if content is not None:
                    _add_sample(content, schemas)


def example_of(content: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """Return the example of a body or an answer of a document with examples; None: it has none."""
    if "example" in content:
        return content["example"]
    (example,) = _named(content, schemas).get("examples", (None,))
    return example


def _add_sample(content: dict[str, Any], schemas: dict[str, Any]) -> None:
    sample = _sample(content["schema"], schemas, "", 0)
    named = _named(content, schemas)
    if named:
        named["examples"] = [sample]
    else:
        content["example"] = sample


def _named(content: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema to which a body or an answer refers; empty if it has one of its own."""
    found: dict[str, Any] = schemas.get(content.get("schema", {}).get("$ref", "").rsplit("/", 1)[-1], {})
    return found


def _sample(schema: dict[str, Any], schemas: dict[str, Any], field: str, depth: int) -> Any:
    """Return a value that fits the schema. ``field``: the name by which a typical value is known."""
    if "$ref" in schema:
        return _sample(schemas[schema["$ref"].rsplit("/", 1)[-1]], schemas, field, depth)
    if choices := schema.get("anyOf", schema.get("oneOf", schema.get("allOf"))):
        return _sample(next((one for one in choices if one.get("type") != "null"), choices[0]), schemas, field, depth)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next(one for one in kind if one != "null")
    match kind:
        case "object":
            return _object(schema, schemas, depth)
        case "array":
            return _array(schema, schemas, field, depth)
        case "boolean":
            return bool(schema.get("default", False))
        case "integer" | "number":
            return _number(schema, is_whole=kind == "integer")
        case "string":
            return _text(schema, field)
        case _:
            return {}


def _object(schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> dict[str, Any]:
    """Return the object whole near the top, and with what it needs alone further down."""
    needed = set(schema.get("required", ()))
    is_whole = depth < MOST_DEPTH - 2
    shown = {name: shape for name, shape in schema.get("properties", {}).items() if is_whole or name in needed}
    return {name: _sample(shape, schemas, name, depth + 1) for name, shape in shown.items()}


def _array(schema: dict[str, Any], schemas: dict[str, Any], field: str, depth: int) -> list[Any]:
    least = schema.get("minItems", 0)
    if depth >= MOST_DEPTH and least == 0:
        return []
    if "prefixItems" in schema:
        return [_sample(one, schemas, field, depth + 1) for one in schema["prefixItems"]]
    return [_sample(schema.get("items", {}), schemas, field, depth + 1)] * max(1, least)


def _number(schema: dict[str, Any], *, is_whole: bool) -> float:
    if isinstance(default := schema.get("default"), int | float) and not isinstance(default, bool):
        return default
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + (1 if "exclusiveMinimum" in schema else 0))
    value = min(max(least, 1), schema.get("maximum", schema.get("exclusiveMaximum", 2) - 1))
    return int(value) if is_whole else float(value)


def _text(schema: dict[str, Any], field: str) -> str:
    if schema.get("format") == "date-time":
        return _MOMENT
    value = str(_SAMPLES.get(field, field.replace("_", "-") or "text"))
    least = schema.get("minLength", 0)
    return (value * (least // max(1, len(value)) + 1) if len(value) < least else value)[: schema.get("maxLength", 200)]
