"""Texts for a person who types a command, where an error's own are for a program that sends requests."""

import re
from typing import Final

WORDS: Final = {
    "invalid_cursor": "The server does not continue this list",
    "invalid_idempotency_key": "The server refused the mark by which a change is made once",
    "request_in_flight": "The same change is being made right now",
    "idempotency_key_reused": "The server knows this change with other options",
    "method_not_allowed": "The server does not know this command",
    "payload_too_large": "The change is larger than the server takes",
    "unsupported_media_type": "The server does not understand this command",
    "headers_too_large": "The command's key or its filters are longer than the server takes",
    "request_timeout": "The command reached the server too slowly",
    "precondition_required": "The server asks which state was read before this change",
}
"""Code of an error → what happened, for the ones whose title names a part of a request."""
_OTHER_RELEASE: Final = "The server is of another release: `muster doctor` shows both versions."
TYPED_ADVICE: Final = {
    "malformed_request": _OTHER_RELEASE,
    "invalid_cursor": "Type the command again: the list begins again at its start.",
    "invalid_idempotency_key": _OTHER_RELEASE,
    "unauthenticated": "Use a key that is neither expired nor revoked: `muster profile list` shows where yours is.",
    "forbidden": "Use a key whose role may do this: `muster doctor` shows the role of yours.",
    "not_found": "Check the name or id: the list command shows what your key can see.",
    "method_not_allowed": _OTHER_RELEASE,
    "conflict": "Show it again, and decide by its new state.",
    "request_in_flight": "Type the command again in a few seconds.",
    "precondition_failed": "Type the command again: it then acts on the new state.",
    "payload_too_large": "Give fewer or shorter values.",
    "headers_too_large": "Give fewer or shorter values.",
    "request_timeout": "Type the command again; if it stays, look at the network between here and the server.",
    "unsupported_media_type": _OTHER_RELEASE,
    "validation_failed": "`--help` of the command shows what each option accepts.",
    "idempotency_key_reused": "Type the command again: it is a new change then.",
    "precondition_required": _OTHER_RELEASE,
    "client_version": "Install the client that the control plane serves at /install.",
    "rate_limited": "Wait a little, and type the command again.",
    "tenant_limit": "Wait until jobs have ended, or ask for a higher limit: see `muster tenant limits`.",
    "secret_key_unusable": "Show this to the operator, who keeps the keys that protect secrets.",
    "unavailable": "Check that the database runs, and type the command again: a change happens once.",
    "too_many_connections": "Type the command again in a few seconds.",
    "cursor_expired": "Begin with the oldest event that is still kept.",
}
"""Code of an error → what to do next."""


OPTIONS_OF_FIELDS: Final = {
    "shape": "--nodes, --gpus",
    "tier": "--tier",
    "reason": "--reason",
    "until": "--for",
    "starts_at": "--in",
    "deadline_s": "--deadline",
    "evacuate_lead_s": "--evacuate",
    "wall_time_s": "--wall-time",
    "guaranteed_gpus": "--guaranteed",
    "borrowable_gpus": "--borrowable",
    "tenant_id": "--tenant",
    "limits.memory_bytes": "--memory",
}
"""Field of a request → the option that gives it, where the option's name is not the field's."""
_POINTER: Final = re.compile(r"^(?:query|path|header)?/(?P<field>[^:\s]+): ")


def for_a_person(code: str, words: str, suggestion: str) -> tuple[str, str]:
    """Return what happened and what to do. A text that is more than the error's usual one stays."""
    from muster.domain.errors import REGISTRY

    words = _POINTER.sub(_option_of, words)
    kind = REGISTRY.get(code)
    if kind is None:
        return words, suggestion
    if code in WORDS:
        words = words.replace(kind.title, WORDS[code])
    return words, TYPED_ADVICE.get(code, suggestion) if suggestion in {"", kind.advice} else suggestion


def _option_of(found: re.Match[str]) -> str:
    field = found["field"].replace("/", ".")
    return f"{OPTIONS_OF_FIELDS.get(field, field)}: "
