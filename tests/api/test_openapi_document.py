"""The committed document is what the code says, and breaks no client without a notice."""

import pytest

from tools.openapi_document import CHANGELOG, DOCUMENT, committed_versions, described, undeclared_breaks, written


def test_the_committed_document_is_what_the_code_states() -> None:
    same = DOCUMENT.read_text(encoding="utf-8") == written(described())
    assert same, "run `make openapi` and commit docs/openapi.json"


def test_what_clients_stand_on_breaks_only_where_the_changelog_reports_it() -> None:
    earlier = committed_versions()
    if not earlier:
        pytest.skip("there is no history of the document here")
    assert undeclared_breaks(described(), earlier, CHANGELOG.read_text(encoding="utf-8")) == []


def test_every_operation_states_what_it_answers_and_takes() -> None:
    document = described()
    names = [operation["operationId"] for operations in document["paths"].values() for operation in operations.values()]
    assert len(names) == len(set(names)), "an operation has its name alone"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            case = (method, path)
            assert operation.get("description") or operation.get("summary"), case
            answers = {status: each for status, each in operation["responses"].items() if status in {"200", "201"}}
            assert answers or "307" in operation["responses"], case
            for response in answers.values():
                schemas = [content["schema"] for content in response["content"].values()]
                assert all(schemas), (case, "an answer without a schema")
            if method in {"post", "put"} and "requestBody" in operation:
                assert operation["requestBody"]["content"]["application/json"]["schema"], case
