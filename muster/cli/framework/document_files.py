"""Documents that people write into files, in YAML or JSON: read, with the faults as text."""

import json
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from muster.cli.framework.beyond_json import unsaid_by_json
from muster.cli.framework.exits import CommandError, Exit
from muster.domain.errors import ValidationFailedError
from muster.domain.strict import StrictModel, require_clean_document
from muster.domain.validation import validated

MOST_FAULTS: Final = 10
M = TypeVar("M", bound=StrictModel)


def document_of(path: Path, hint: str, code: Exit = Exit.INVALID) -> dict[str, Any]:
    """Return a file's mapping. Raises ``CommandError`` with ``code`` and ``hint`` if it is no mapping in YAML."""
    from muster.cli.framework.yaml_loading import UNREADABLE, load_yaml

    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, *UNREADABLE) as error:
        raise unreadable(str(path), error, "Fix it; JSON is YAML too.", code) from error
    if not isinstance(document, dict):
        raise CommandError(f"{path}: holds no mapping", hint, code)
    require_json(str(path), document, hint, code)
    return document


def decoded(name: str, content: bytes) -> str:
    """Return the text of a file. Raises ``CommandError`` if it is no UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        words = f"{name}: byte {error.start} is not UTF-8"
        raise CommandError(words, "Write it as UTF-8.", Exit.INVALID) from None


def unreadable(name: str, error: Exception, hint: str, code: Exit = Exit.INVALID) -> CommandError:
    """Return the error about a file that raised one of ``UNREADABLE``."""
    words = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return CommandError(f"{name}: cannot be read as YAML ({words})", hint, code)


def require_json(name: str, document: dict[str, Any], hint: str, code: Exit = Exit.INVALID) -> None:
    """Require that JSON can hold the mapping of a file. Raises ``CommandError`` with ``code`` and ``hint``."""
    if faults := faults_in_json(document):
        raise CommandError(f"{name}: {'; '.join(faults)}", hint, code)


def faults_in_json(document: dict[str, Any]) -> list[str]:
    """Return why JSON cannot hold the mapping, ``MOST_FAULTS`` reasons at most."""
    try:
        unsaid = list(islice(unsaid_by_json(document), MOST_FAULTS))
        if not unsaid:
            require_clean_document(json.loads(json.dumps(document)))
    except RecursionError:
        return ["holds a list or mapping within itself"]
    except ValueError as fault:
        return [f"a text in it {fault}"]
    return unsaid


def place_words(pointer: str, whole: str) -> str:
    """Return a pointer as people write a path of keys; ``whole``: text for the document itself."""
    return pointer.lstrip("/").replace("/", ".") or whole


def validated_or_faults(kind: type[M], document: dict[str, Any]) -> tuple[M | None, list[dict[str, str]]]:
    """Return the document, or None with every fault: its place (a JSON pointer) and its text, as in the API."""
    try:
        return validated(kind, document), []
    except ValidationFailedError as refused:
        return None, [{"pointer": fault.pointer, "detail": fault.detail} for fault in refused.faults]


def fault_words(fault: Any) -> str:
    """Return a fault, which has a pointer and a detail, as text."""
    return f"{place_words(fault['pointer'], 'the whole')}: {fault['detail']}"


def fault_lines(faults: Any) -> list[str]:
    """Return faults as the lines below what they are faults of."""
    return [f"  {fault_words(each)}" for each in faults]
