"""The base of every message between hosts and control plane: frozen, and strict about its input."""

from msgspec import Struct


class WireMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what hosts send: unknown fields are refused, so a newer host has to wait for its server."""


class WireAnswer(Struct, frozen=True, kw_only=True):
    """Base of what the server answers: unknown fields are ignored, so an older host keeps working."""
