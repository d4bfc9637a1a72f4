"""The page of the API: each operation with parameters, body, answer and example, and each type once. No script.

It is one file that needs nothing from elsewhere, so that it also works where there is no internet.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from api.examples import example_of

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1a1d21;"
    "background:#fff}code,pre{font-family:ui-monospace,monospace;font-size:13px}h2{margin-top:2rem;"
    "border-bottom:1px solid #ddd}details{margin:.3rem 0}summary{cursor:pointer}"
    "details>div{margin:.5rem 0 1.5rem 1.2rem}"
    ".m{display:inline-block;min-width:4.2rem;font-weight:600}table{border-collapse:collapse;width:100%;margin:.4rem 0}"
    "td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #eee}"
    "td:first-child{white-space:nowrap}pre{background:#f5f6f7;padding:.6rem;overflow:auto;max-height:24rem}"
    ".p{color:#555}nav a{margin-right:.8rem}a{color:#0b5fa5}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#16181c}.p{color:#aaa}h2{border-color:#444}"
    "td,th{border-color:#333}pre{background:#22252a}a{color:#7ab8f0}}"
)
_ABOUT: Final = (
    '<p>The same as a machine reads it: <a href="/v1/openapi.json">/v1/openapi.json</a>. Send '
    "<code>Authorization: Bearer mst_…</code>; every error is a problem document (RFC 9457).</p>"
)
_SAMPLE_IN_PATH: Final = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class Page:
    """The page. ``style_digest`` is the style's SHA-256 for the Content-Security-Policy."""

    html: str
    style_digest: str


def documentation_page(document: dict[str, Any]) -> Page:
    """Return the page of an OpenAPI document."""
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = document["components"]["schemas"]
    tags = sorted({_tag(operation) for _, _, operation in operations})
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Muster API</title><style>{_STYLE}</style>",
        f"<h1>Muster API {escape(document['info']['version'])}</h1>",
        _ABOUT,
        "<nav>" + "".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in tags),
        '<a href="#types">types</a></nav>',
    ]
    for tag in tags:
        parts.append(f'<h2 id="{escape(tag)}">{escape(tag)}</h2>')
        parts += [_operation(*one, schemas) for one in operations if _tag(one[2]) == tag]
    parts.append('<h2 id="types">Types</h2>')
    parts += [_type(name, schema) for name, schema in sorted(schemas.items())]
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return Page("".join(parts) + "</html>", digest)


def _tag(operation: dict[str, Any]) -> str:
    return str(operation.get("tags", ["other"])[0])


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    words = _text(operation.get("description") or operation.get("summary") or "")
    permission = escape(operation.get("x-permission", ""))
    head = f"<span class=m>{escape(method.upper())}</span><code>{escape(path)}</code> {words.partition('. ')[0]}"
    parts = [f'<details id="{escape(operation["operationId"])}"><summary>{head}</summary><div><p>{words}</p>']
    parts.append(f"<p class=p>Permission: {permission}</p>")
    if rows := [_parameter(one) for one in operation.get("parameters", ())]:
        parts.append(f"<table><tr><th>parameter<th>in<th>type<th>meaning</tr>{''.join(rows)}</table>")
    body = next(iter(operation.get("requestBody", {}).get("content", {}).values()), None)
    if body is not None:
        parts.append(f"<p>Body: {_type_of(body['schema'])}</p>")
    parts.append(f"<pre>{escape(_curl(path, method, body, schemas))}</pre>")
    parts += _answers(operation, schemas)
    return "".join(parts) + "</div></details>"


def _answers(operation: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    """Return the answers with an example each; that of a dry run is like that of the change."""
    parts = []
    for status in ("201",) if "201" in operation["responses"] else ("200",):
        for kind, content in operation["responses"].get(status, {}).get("content", {}).items():
            parts.append(f"<p>Answer {status}, {escape(kind)}: {_type_of(content.get('schema', {}))}</p>")
            example = example_of(content, schemas)
            if example is not None:
                parts.append(f"<pre>{escape(json.dumps(example, indent=1, ensure_ascii=False))}</pre>")
    return parts


def _parameter(parameter: dict[str, Any]) -> str:
    needed = " (required)" if parameter.get("required") else ""
    cells = (
        f"<code>{escape(parameter['name'])}</code>",
        escape(parameter["in"]),
        _type_of(parameter["schema"]),
        _text(parameter.get("description", "")) + needed,
    )
    return f"<tr>{''.join(f'<td>{cell}' for cell in cells)}</tr>"


def _curl(path: str, method: str, body: dict[str, Any] | None, schemas: dict[str, Any]) -> str:
    """Return the request as a command of a shell: `$MUSTER_URL` and `$MUSTER_API_KEY` as in the documentation."""
    target = _SAMPLE_IN_PATH.sub(lambda found: "$" + found[1].upper(), path)
    words = f'curl -X {method.upper()} "$MUSTER_URL{target}" -H "Authorization: Bearer $MUSTER_API_KEY"'
    if body is None:
        return words
    text = json.dumps(example_of(body, schemas), indent=1, ensure_ascii=False).replace("'", "'\\''")
    return f"{words} \\\n  -H 'Content-Type: application/json' -d '{text}'"


def _type(name: str, schema: dict[str, Any]) -> str:
    needed = set(schema.get("required", ()))
    rows = [
        f"<tr><td><code>{escape(field)}</code>{'' if field in needed else '?'}<td>{_type_of(shape)}"
        f"<td>{_text(shape.get('description', ''))}</tr>"
        for field, shape in schema.get("properties", {}).items()
    ]
    table = f"<table><tr><th>field<th>type<th>meaning</tr>{''.join(rows)}</table>" if rows else ""
    values = f"<p><code>{escape(', '.join(map(str, schema['enum'])))}</code></p>" if "enum" in schema else ""
    words = f"<p>{_text(schema.get('description', ''))}</p>"
    head = f'<details id="type-{escape(name)}"><summary><code>{escape(name)}</code></summary>'
    return f"{head}<div>{words}{values}{table}</div></details>"


def _type_of(schema: dict[str, Any]) -> str:
    """Return a schema as words, with a link to each named type."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#type-{name}"><code>{name}</code></a>'
    if choices := schema.get("anyOf", schema.get("oneOf", schema.get("allOf"))):
        return " or ".join(_type_of(one) for one in choices)
    if "enum" in schema or "const" in schema:
        return f"<code>{escape(', '.join(map(str, schema.get('enum', [schema.get('const')]))))}</code>"
    kind = schema.get("type", "any")
    kind = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array":
        return f"list of {_type_of(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type_of(schema['additionalProperties'])}"
    return escape(str(schema.get("format", kind)))


def _text(words: str) -> str:
    """Return a description as HTML: its code marks become code, of one back quote or two."""
    return re.sub(r"`{1,2}([^`]+)`{1,2}", r"<code>\1</code>", escape(words))
