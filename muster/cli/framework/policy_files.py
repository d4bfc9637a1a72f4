"""A policy in a file, read and validated without a server, with all its faults at once."""

from pathlib import Path
from typing import Any, Final

from muster.cli.framework.document_files import document_of, place_words
from muster.cli.framework.exits import CommandError, Exit
from muster.domain.errors import ValidationFailedError
from muster.domain.policy.document import Policy
from muster.domain.validation import validated as validated_at_once

HINT: Final = "See `muster policy show`."


def policy_document(path: Path, code: Exit = Exit.INVALID) -> dict[str, Any]:
    """Return a file's mapping. Raises ``CommandError`` with ``code`` if it is none."""
    return document_of(path, HINT, code)


def validated(document: dict[str, Any]) -> tuple[Policy | None, list[dict[str, str]]]:
    """Return the policy, or None with every fault: its place (a JSON pointer) and its text, as in the API."""
    try:
        return validated_at_once(Policy, document), []
    except ValidationFailedError as refused:
        return None, [{"pointer": fault.pointer, "detail": fault.detail} for fault in refused.faults]


def policy_of_file(path: Path, code: Exit = Exit.INVALID) -> Policy:
    """Return a file's policy. Raises ``CommandError`` with ``code`` and every fault."""
    policy, faults = validated(policy_document(path, code))
    if policy is None:
        said = "; ".join(fault_words(each) for each in faults)
        raise CommandError(f"{path} is no policy: {said}", HINT, code)
    return policy


def fault_words(fault: Any) -> str:
    """Return a fault, which has a pointer and a detail, as text."""
    return f"{place_words(fault['pointer'], 'the whole')}: {fault['detail']}"
