"""Each field and parameter is described once, and each body and answer has an example that fits its schema."""

from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel

from api.documentation_page import documentation_page
from api.examples import BODIES, example_of
from api.field_descriptions import _classes, _lineage, _own_texts
from muster.documents.field_texts import FIELD_TEXTS, PARAMETER_TEXTS
from tools.openapi_document import described

Schema = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Schema:
    return described()


def operations(document: Schema) -> list[Schema]:
    return [operation for methods in document["paths"].values() for operation in methods.values()]


def test_every_field_and_parameter_states_what_it_means(document: Schema) -> None:
    fields = {
        f"{name}.{field}": shape.get("description")
        for name, schema in document["components"]["schemas"].items()
        for field, shape in schema.get("properties", {}).items()
        if name != "Problem"
    }
    parameters = {
        f"{operation['operationId']} {parameter['name']}": parameter.get("description")
        for operation in operations(document)
        for parameter in operation.get("parameters", ())
    }
    assert [name for name, text in (fields | parameters).items() if not text] == []


def test_no_text_is_left_that_no_field_has(document: Schema) -> None:
    schemas = document["components"]["schemas"]
    fields = {field for schema in schemas.values() for field in schema.get("properties", {})}
    pairs = {f"{base}.{field}" for base, field in class_fields(document)}
    assert [name for name in FIELD_TEXTS if name not in fields | pairs] == []
    parameters = set[str]()
    for operation in operations(document):
        names = {each["name"] for each in operation.get("parameters", ())}
        parameters |= names | {f"{operation['operationId']}.{name}" for name in names}
    assert [name for name in PARAMETER_TEXTS if name not in parameters] == []


def class_fields(document: Schema) -> set[tuple[str, str]]:
    """Return the schemas and the bases of their classes, each with the fields of the schema."""
    found = set[tuple[str, str]]()
    for name, schema in document["components"]["schemas"].items():
        names = {name} | {base.__name__ for kind in _classes().get(name, ()) for base in _lineage(kind)}
        found |= {(base, field) for base in names for field in schema.get("properties", {})}
    return found


def test_no_class_describes_again_what_has_a_text_of_its_own(document: Schema) -> None:
    twice = [
        f"{kind.__name__}.{field}"
        for name in document["components"]["schemas"]
        for kind in _classes().get(name, ())
        for base in _lineage(kind)
        for field in _own_texts(base)
        if f"{base.__name__}.{field}" in FIELD_TEXTS
    ]
    assert twice == []


def test_the_docstring_of_a_class_describes_its_fields() -> None:
    class Box:
        """A thing. ``width``: how wide; ``height`` and ``depth``: how high,
        or deep. More words.

        ``weight``: in grams.
        """

        colour: str
        """By name."""

    # The class of a function stands in no module's source by its own name alone: only the docstring is read.
    assert _own_texts(Box) | {"colour": "By name."} == {
        "width": "How wide.",
        "height": "How high, or deep. More words.",
        "depth": "How high, or deep. More words.",
        "weight": "In grams.",
        "colour": "By name.",
    }


def bodies(document: Schema) -> dict[str, Schema]:
    found = {}
    for operation in operations(document):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            found[f"{operation['operationId']} body"] = content
        for status in ("200", "201"):
            content = operation["responses"].get(status, {}).get("content", {}).get("application/json")
            if content is not None:
                found[f"{operation['operationId']} {status}"] = content
    return found


def test_every_body_and_answer_has_an_example_that_fits(document: Schema) -> None:
    faults, schemas = list[str](), document["components"]["schemas"]
    for name, content in bodies(document).items():
        schema = {**content["schema"], "components": document["components"]}
        faults += [
            f"{name}: {fault.message}"
            for fault in Draft202012Validator(schema).iter_errors(example_of(content, schemas))
        ]
    assert faults == []


def test_the_written_examples_are_accepted_by_the_code(document: Schema) -> None:
    found = bodies(document)
    assert sorted(name for name in BODIES if f"{name} body" not in found) == []
    for name, body in BODIES.items():
        model = found[f"{name} body"]["schema"]["$ref"].rsplit("/", 1)[-1]
        (kind,) = [each for each in _classes()[model] if issubclass(each, BaseModel)]
        kind.model_validate(body)


def test_the_page_has_each_operation_and_type_and_needs_nothing_from_elsewhere(document: Schema) -> None:
    page = documentation_page(document).html
    for operation in operations(document):
        assert f'<details id="{operation["operationId"]}">' in page
        for parameter in operation.get("parameters", ()):
            assert f"<code>{parameter['name']}</code>" in page
    for name in document["components"]["schemas"]:
        assert f'<details id="type-{name}">' in page
    assert not [mark for mark in ("<script", "http://", "src=", "url(") if mark in page]
