"""Sign-ins of the command by a code, which a signed-in person confirms in the console."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Final

LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
"""Letters of a code: no vowels, which would make words, and no digits, which look like letters."""
CODE_LETTERS: Final = 8
LIFETIME: Final = timedelta(minutes=10)
"""Time in which a code is confirmed."""
TAKEN_WITHIN: Final = timedelta(minutes=2)
"""Time after the confirmation in which the command fetches its key; it asks every few seconds."""
INTERVAL_S: Final = 2
KEY_LIFETIME: Final = timedelta(days=30)
"""Longest life of a key that a sign-in makes."""
OPEN_MAX: Final = 500
"""Codes that wait at once, over all addresses: each is a row that anyone may make."""
OPEN_OF_NETWORK: Final = 10
"""Codes that wait at once of one address, or of one network of IPv6, whose holder has all its addresses."""
_OTHERS: Final = re.compile(r"[^A-Z]")


class LoginState(StrEnum):
    """State of a sign-in, as the waiting command sees it."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    DENIED = "denied"
    EXPIRED = "expired"


def code_in(text: str) -> str | None:
    """Return the code that a person typed, with or without a dash, in any case; None where it is none."""
    letters = _OTHERS.sub("", text[:64].upper())
    return letters if len(letters) == CODE_LETTERS else None


def shown_code(code: str) -> str:
    """Return a code in two halves, as a terminal and a page show it."""
    return f"{code[: CODE_LETTERS // 2]}-{code[CODE_LETTERS // 2 :]}"
