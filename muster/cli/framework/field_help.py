"""Help of options that stand for a field or parameter of the API: the text of ``muster.documents.field_texts``.

An option has the text's first sentence, or the short form that stands with it, and what the command alone knows: how
a value is written, and the default.
"""

import re
from typing import Final

from muster.documents.field_texts import FIELD_TEXTS, PARAMETER_TEXTS, FieldText

_SENTENCE: Final = re.compile(r"(?<=[.…])\s+(?=[A-Z`])")
_NULL: Final = re.compile(r"; (?:null if .+|null for .+|(?:null:|by default) (?P<default>.+))\.$")
"""What a field means where it is null: the default of its option, or nothing that an option can say."""


def field_help(name: str, notation: str = "") -> str:
    """Return the help of an option for a field. ``name``: ``Class.field``, or the field's name alone.

    ``notation``: a sentence on how a value is written, or on the option's own default.

    Raises:
        KeyError: the field has no text.
    """
    return option_help(FIELD_TEXTS[name], notation)


def parameter_help(name: str, notation: str = "") -> str:
    """Return the help of an option for a parameter of a query or path. ``name``: as in ``PARAMETER_TEXTS``.

    Raises:
        KeyError: the parameter has no text.
    """
    return option_help(PARAMETER_TEXTS[name], notation)


def option_help(text: str, notation: str = "") -> str:
    """Return the help of an option for what has this text."""
    whole = text.option if isinstance(text, FieldText) else text.replace("``", "`")
    first = whole if isinstance(text, FieldText) else _SENTENCE.split(whole, maxsplit=1)[0]
    null = _NULL.search(first)
    words = [first if null is None else f"{first[: null.start()]}.", notation]
    if null is not None and null["default"] is not None and "Default: " not in notation:
        words.append(f"Default: {null['default']}.")
    return " ".join(filter(None, words))
