"""An error shows the person at a terminal what to type, and not which header a program should have sent."""

import re

import pytest

from muster.cli.framework.command_words import OPTIONS_OF_FIELDS, TYPED_ADVICE, WORDS, for_a_person
from muster.domain.errors import REGISTRY
from tests.cli.framework.test_tree import TREE, options_of

OF_REQUESTS = re.compile(r"header|body|path|method|Content-|Accept|If-Match|ETag|Idempotency|Retry-After|cursor|JSON")
OF_A_HOST = {"stale_fence", "no_such_bundle", "internal", "upgrade_required"}
"""Errors that no command receives, or that have no words of a request."""


@pytest.mark.parametrize("code", REGISTRY)
def test_no_usual_text_names_a_part_of_a_request(code: str) -> None:
    kind = REGISTRY[code]
    words, suggestion = for_a_person(code, kind.title, kind.advice)
    assert not OF_REQUESTS.search(f"{words} {suggestion}")
    assert code in TYPED_ADVICE or code in OF_A_HOST


def test_a_text_that_is_more_than_the_usual_one_stays() -> None:
    assert for_a_person("conflict", "the job has ended (conflict)", "submit another") == (
        "the job has ended (conflict)",
        "submit another",
    )
    assert for_a_person("of_a_newer_server", "words", "advice") == ("words", "advice")
    assert WORDS.keys() <= REGISTRY.keys()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("/shape: asks for 16 GPUs; the fleet has 4", "--nodes, --gpus: asks for 16 GPUs; the fleet has 4"),
        ("/document/version: there is no such key", "document.version: there is no such key"),
        ("query/limit: must be at most 200", "limit: must be at most 200"),
        ("the path /srv/x: y is refused", "the path /srv/x: y is refused"),
    ],
)
def test_a_field_of_a_request_is_named_by_its_option_or_without_slashes(sent: str, shown: str) -> None:
    assert for_a_person("validation_failed", sent, "")[0] == shown


def test_each_option_that_stands_for_a_field_is_one_of_a_command() -> None:
    known = {name for command in TREE.values() for name in options_of(command)}
    assert {name for words in OPTIONS_OF_FIELDS.values() for name in words.split(", ")} <= known
