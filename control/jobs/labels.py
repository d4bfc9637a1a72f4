"""A job against the labels that the policy requires, before it is accepted."""

from collections.abc import Iterator, Mapping, Sequence

from muster.domain.errors import FieldFault, ValidationFailedError


def require_labels(labels: Mapping[str, str], required: Mapping[str, Sequence[str]]) -> None:
    """Raise ValidationFailedError, with every fault at once, if a required label is missing or has another value.

    ``required``: by name the accepted values; without values any is accepted.
    """
    faults = tuple(_faults(labels, required))
    if faults:
        raise ValidationFailedError("; ".join(f"{one.pointer}: {one.detail}" for one in faults), faults=faults)


def _faults(labels: Mapping[str, str], required: Mapping[str, Sequence[str]]) -> Iterator[FieldFault]:
    for name, accepted in sorted(required.items()):
        pointer, value = f"/labels/{name}", labels.get(name, "")
        known = ", ".join(accepted)
        if not value:
            needed = f"the policy requires this label; accepted: {known or 'any text'}"
            yield FieldFault(pointer, "missing_label", needed)
        elif accepted and value not in accepted:
            yield FieldFault(pointer, "unknown_label", f"{value} is not accepted; accepted: {known}")
