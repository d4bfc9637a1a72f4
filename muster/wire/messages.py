"""The base of every message between hosts and control plane: frozen, and strict about its input."""

from msgspec import Struct


class WireMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of hosts' messages: unknown fields are refused, so a newer host has to wait for its server."""


class WireAnswer(Struct, frozen=True, kw_only=True):
    """Base of the server's answers: unknown fields are ignored, so an older host keeps working."""
