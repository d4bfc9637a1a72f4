"""A policy in a file, read and validated without a server, with all its faults at once."""

import json
from itertools import islice
from pathlib import Path
from typing import Any, Final

from muster.cli.framework.beyond_json import unsaid_by_json
from muster.cli.framework.exits import CommandError, Exit
from muster.domain.errors import ValidationFailedError
from muster.domain.policy.document import Policy
from muster.domain.strict import require_clean_document
from muster.domain.validation import validated as validated_at_once

MOST_FAULTS: Final = 10


def document_of(path: Path, code: Exit = Exit.INVALID, *, hint: str = "See `muster policy show`.") -> dict[str, Any]:
    """Return a file's mapping. Raises ``CommandError`` with ``code`` and ``hint`` if it is no mapping in YAML."""
    import yaml

    from muster.cli.framework.yaml_loading import load_yaml

    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError, RecursionError) as error:
        words = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CommandError(f"{path}: cannot be read as YAML ({words})", "Fix it; JSON is YAML too.", code) from error
    if not isinstance(document, dict):
        raise CommandError(f"{path}: holds no mapping", hint, code)
    require_json(str(path), document, hint, code)
    return document


def require_json(path: str, document: dict[str, Any], hint: str, code: Exit = Exit.INVALID) -> None:
    """Require that JSON can hold the mapping of ``path``. Raises ``CommandError`` with ``code`` and ``hint``."""
    try:
        unsaid = list(islice(unsaid_by_json(document), MOST_FAULTS))
        text = "" if unsaid else json.dumps(document)
    except RecursionError:
        raise CommandError(f"{path}: holds a list or mapping within itself", hint, code) from None
    if unsaid:
        raise CommandError(f"{path}: {'; '.join(unsaid)}", hint, code)
    try:
        require_clean_document(json.loads(text))
    except ValueError as fault:
        raise CommandError(f"{path}: a text in it {fault}", hint, code) from None


def validated(document: dict[str, Any]) -> tuple[Policy | None, list[dict[str, str]]]:
    """Return the policy, or None with every fault: its place (a JSON pointer) and its text, as in the API."""
    try:
        return validated_at_once(Policy, document), []
    except ValidationFailedError as refused:
        return None, [{"pointer": fault.pointer, "detail": fault.detail} for fault in refused.faults]


def policy_of_file(path: Path, code: Exit = Exit.INVALID) -> Policy:
    """Return a file's policy. Raises ``CommandError`` with ``code`` and every fault."""
    policy, faults = validated(document_of(path, code))
    if policy is None:
        said = "; ".join(fault_words(each) for each in faults)
        raise CommandError(f"{path} is no policy: {said}", "See `muster policy show`.", code)
    return policy


def fault_words(fault: Any) -> str:
    """Return a fault, which has a pointer and a detail, as text."""
    return f"{place_words(fault['pointer'], 'the whole')}: {fault['detail']}"


def place_words(pointer: str, whole: str) -> str:
    """Return a pointer as people write a path of keys; ``whole``: text for the document itself."""
    return pointer.lstrip("/").replace("/", ".") or whole
