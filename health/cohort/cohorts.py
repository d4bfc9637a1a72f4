"""Cohorts: GPUs that may be mixed in one gang, by equal named attributes and by fingerprints within tolerance."""

from collections.abc import Collection, Iterable, Mapping
from statistics import median
from typing import Final
from urllib.parse import quote, unquote

from muster.domain.ids import GpuUuid
from muster.domain.policy.health import CohortPolicy

Attribute = str | int | None
UNKNOWN: Final = "-"
_PLAIN: Final = " .,+:()"
"""Signs that stand for themselves in a key, so that people can read it; no slash, so that a key is a part of a path."""


def cohort_key(attributes: Mapping[str, Attribute], policy: CohortPolicy) -> str:
    """A stable text: equal for two GPUs exactly when all the policy's attributes are equal.

    The attributes in the order of their names, ``name=value`` joined by ``|``; an attribute that is not known is ``-``,
    equal only to itself.
    """
    return "|".join(f"{name}={_text(attributes.get(name))}" for name in sorted(policy.attributes))


def agreed_of(told: Iterable[tuple[str, Mapping[str, Attribute]]]) -> dict[str, dict[str, Attribute]]:
    """Model → what all GPUs of it that tell an attribute tell alike. ``told``: the model and attributes of each."""
    values: dict[str, dict[str, set[Attribute]]] = {}
    for model, attributes in told:
        of_model = values.setdefault(model, {})
        for name, value in attributes.items():
            if value is not None:
                of_model.setdefault(name, set()).add(value)
    return {
        model: {name: next(iter(found)) for name, found in of_model.items() if len(found) == 1}
        for model, of_model in values.items()
    }


def presumed(attributes: Mapping[str, Attribute], agreed: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """With what is not known of it taken to be as it is of all others of its model that tell it (``agreed``).

    So an agent that does not tell an attribute splits no fleet that is alike. Where others differ in it, what it is of
    this GPU cannot be presumed: it stays unknown, and the GPU is mixed with none of them.
    """
    return {**agreed, **{name: value for name, value in attributes.items() if value is not None}}


def attributes_of(key: str) -> dict[str, str | None]:
    """What ``cohort_key`` wrote, as text; None for what is not known."""
    pairs = (part.partition("=") for part in key.split("|"))
    return {name: None if value == UNKNOWN else unquote(value) for name, _, value in pairs}


def part_of_key(key: str, attributes: Collection[str] | None) -> str:
    """What ``cohort_key`` wrote, of these attributes alone (None: of all): equal for GPUs that a tier lets be mixed."""
    if attributes is None:
        return key
    return "|".join(pair for pair in key.split("|") if pair.partition("=")[0] in attributes)


def may_be_mixed(keys: Iterable[str], attributes: Collection[str] | None) -> bool:
    """Whether GPUs of these cohorts are alike in all that is asked for, so that one gang may have them (I4).

    ``attributes``: as ``Policy.homogeneity`` of its tier. Of none at all there is no gang.
    """
    return len({part_of_key(key, attributes) for key in keys}) == 1


def cohorts_of(gpus: Mapping[GpuUuid, Mapping[str, Attribute]], policy: CohortPolicy) -> dict[str, tuple[GpuUuid, ...]]:
    """Key → its GPUs, both in order."""
    found: dict[str, list[GpuUuid]] = {}
    for gpu_uuid in sorted(gpus):
        found.setdefault(cohort_key(gpus[gpu_uuid], policy), []).append(gpu_uuid)
    return {key: tuple(found[key]) for key in sorted(found)}


def outliers_of(
    fingerprints: Mapping[GpuUuid, Mapping[str, float]], policy: CohortPolicy
) -> dict[GpuUuid, tuple[str, ...]]:
    """GPUs with a figure further from its cohort's median than the tolerance, and which figures.

    ``fingerprints``: GPU → figure → value, all of one cohort; a figure that a GPU lacks says nothing of it.
    """
    medians = {name: median(_values(fingerprints.values(), name)) for name in _names(fingerprints.values())}
    found = {
        gpu_uuid: tuple(
            name
            for name in sorted(fingerprint)
            if abs(fingerprint[name] - medians[name]) > policy.tolerance * abs(medians[name])
        )
        for gpu_uuid, fingerprint in sorted(fingerprints.items())
    }
    return {gpu_uuid: names for gpu_uuid, names in found.items() if names}


def _text(value: Attribute) -> str:
    """Percent-encoded, so that no value can pass for a separator, nor a known one for an unknown."""
    if value is None:
        return UNKNOWN
    text = quote(str(value), safe=_PLAIN)
    return "%2D" if text == UNKNOWN else text


def _names(fingerprints: Iterable[Mapping[str, float]]) -> list[str]:
    return sorted({name for fingerprint in fingerprints for name in fingerprint})


def _values(fingerprints: Iterable[Mapping[str, float]], name: str) -> list[float]:
    return [fingerprint[name] for fingerprint in fingerprints if name in fingerprint]
