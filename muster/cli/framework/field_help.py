"""Help of options that stand for a parameter of the API: the text of ``muster.documents.field_texts``."""

from muster.documents.field_texts import PARAMETER_TEXTS


def parameter_help(name: str) -> str:
    """Return the text of a parameter of the query. Raises KeyError: it has none."""
    return PARAMETER_TEXTS[name]
