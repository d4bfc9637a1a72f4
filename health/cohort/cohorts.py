"""Cohorts: GPUs that may be mixed in one gang, by equal named attributes and by fingerprints within tolerance."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final
from urllib.parse import quote, unquote

from muster.domain.gpu.cohort_attributes import LINKS
from muster.domain.policy.health import CohortPolicy

Attribute = str | int | None
UNKNOWN: Final = "-"
_PLAIN: Final = " .,+:()"
"""Characters that a key contains unencoded, so that people can read it; no slash, so that a key is one part of a path.
"""


def cohort_key(attributes: Mapping[str, Attribute], policy: CohortPolicy) -> str:
    """Return a stable text that is equal for two GPUs exactly when all the policy's attributes are equal.

    The attributes stand in the order of their names, ``name=value`` joined by ``|``. An unknown attribute is ``-``,
    which is equal only to itself.
    """
    return "|".join(f"{name}={_text(attributes.get(name))}" for name in sorted(policy.attributes))


def agreed_of(reported: Iterable[tuple[str, Mapping[str, Attribute], int]]) -> dict[str, dict[str, Attribute]]:
    """Return model → the attributes that may be presumed of a GPU of the model that does not report them.

    That is the one value of all GPUs that report the attribute, and of ``LINKS`` the value of most of them: a wrong
    guess about a link makes a gang slow, whereas one about a driver or firmware may make it wrong. ``reported``: model
    and attributes, with the number of GPUs that have them.
    """
    values: dict[str, dict[str, Counter[Attribute]]] = {}
    for model, attributes, num_gpus in reported:
        of_model = values.setdefault(model, {})
        for name, value in attributes.items():
            if value is not None:
                of_model.setdefault(name, Counter())[value] += num_gpus
    return {
        model: {name: _most(found) for name, found in of_model.items() if len(found) == 1 or name in LINKS}
        for model, of_model in values.items()
    }


def _most(found: Mapping[Attribute, int]) -> Attribute:
    """Return the value of most GPUs; of equal numbers the one that is first as a text."""
    return min(found, key=lambda value: (-found[value], str(value)))


def presumed(attributes: Mapping[str, Attribute], agreed: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Return the GPU's attributes, with unknown ones as they may be presumed of its model (``agreed_of``).

    So an agent that does not report an attribute splits no uniform fleet. Where other GPUs differ in an attribute that
    is none of ``LINKS``, it stays unknown, and the GPU is mixed with none of them.
    """
    return {**agreed, **{name: value for name, value in attributes.items() if value is not None}}


def attributes_of(key: str) -> dict[str, str | None]:
    """Return the attributes in a key of ``cohort_key`` as text, None for an unknown one."""
    pairs = (part.partition("=") for part in key.split("|"))
    return {name: None if value == UNKNOWN else unquote(value) for name, _, value in pairs}


def part_of_key(key: str, attributes: Collection[str] | None) -> str:
    """Return the part of a cohort key with these attributes alone (None: all).

    It is equal for GPUs that a tier allows to be mixed.
    """
    if attributes is None:
        return key
    return "|".join(pair for pair in key.split("|") if pair.partition("=")[0] in attributes)


def may_be_mixed(keys: Iterable[str], attributes: Collection[str] | None) -> bool:
    """Return whether these cohorts agree in all required attributes, so that one gang may have their GPUs (I4).

    ``attributes``: as ``Policy.homogeneity`` of its tier. No keys make no gang.
    """
    return len({part_of_key(key, attributes) for key in keys}) == 1


def _text(value: Attribute) -> str:
    """Return the value percent-encoded, so that it cannot pass for a separator, nor a known one for an unknown one."""
    if value is None:
        return UNKNOWN
    text = quote(str(value), safe=_PLAIN)
    return "%2D" if text == UNKNOWN else text
