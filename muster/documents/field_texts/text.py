"""A text with a short form of it for an option of the command, where the field's own sentence does not fit one."""

from typing import Self


class FieldText(str):
    """What a field means. ``option``: the same for an option, which takes a name, a duration or a part of it instead.

    It is a plain text otherwise: OpenAPI and pages show it as it is.
    """

    __slots__ = ("option",)

    option: str

    def __new__(cls, text: str, *, option: str) -> Self:
        """Return the text."""
        made = super().__new__(cls, text)
        made.option = option
        return made
