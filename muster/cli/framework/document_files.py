"""Documents that people write into files, in YAML or JSON: read, with the faults as text."""

import json
from itertools import islice
from pathlib import Path
from typing import Any, Final

from muster.cli.framework.beyond_json import unsaid_by_json
from muster.cli.framework.exits import CommandError, Exit
from muster.domain.strict import require_clean_document

MOST_FAULTS: Final = 10


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
