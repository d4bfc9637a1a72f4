"""A policy in a file, read and validated without a server, with all its faults at once."""

from pathlib import Path
from typing import Any, Final

from muster.cli.framework.document_files import document_of, fault_words, validated_or_faults
from muster.cli.framework.exits import CommandError, Exit
from muster.domain.policy.document import Policy

HINT: Final = "See `muster policy show`."


def policy_document(path: Path, code: Exit = Exit.INVALID) -> dict[str, Any]:
    """Return a file's mapping. Raises ``CommandError`` with ``code`` if it is none."""
    return document_of(path, HINT, code)


def policy_of_file(path: Path, code: Exit = Exit.INVALID) -> Policy:
    """Return a file's policy. Raises ``CommandError`` with ``code`` and every fault."""
    policy, faults = validated_or_faults(Policy, policy_document(path, code))
    if policy is None:
        said = "; ".join(fault_words(each) for each in faults)
        raise CommandError(f"{path} is no policy: {said}", HINT, code)
    return policy
