"""Keys of the policy that had another name before 0.2.0. A document with the former name is still accepted."""

from collections.abc import Mapping
from typing import Any, Final

FORMER: Final = (
    (("dispatch",), "ring_again_s", "wake_again_s"),
    (("dispatch",), "look_from_nodes", "preflight_from_nodes"),
    (("dispatch",), "look_within_s", "preflight_within_s"),
    (("dispatch",), "dataset_look_s", "dataset_check_s"),
    (("training",), "hold_s", "fault_detection_s"),
    (("queue",), "passed_work_bound_s", "overtaken_work_bound_s"),
    (("health",), "node_hold", "rule_cordon"),
    (("health", "rule_cordon"), "rate_holds_s", "rate_fault_s"),
    (("health", "rule_cordon"), "moment_holds_s", "event_fault_s"),
    (("health", "rule_cordon"), "state_holds_s", "state_fault_s"),
    (("health", "detectors", "gpu_count"), "holds_node_from", "cordons_node_from"),
    (("health", "warm_up"), "words_wait_s", "log_wait_s"),
    (("health", "burn_in"), "asked_by", "requested_by"),
    (("health", "burn_in"), "asks_per_s", "polls_per_s"),
)
"""The sections around a key, its former name and its present one. A section's own rename precedes those within it."""


def with_present_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with present keys. A key that has both names stays as it is, and is refused as unknown."""
    present = dict(document)
    for sections, former, key in FORMER:
        present = _renamed(present, sections, former, key)
    return present


def _renamed(document: dict[str, Any], sections: tuple[str, ...], former: str, key: str) -> dict[str, Any]:
    if sections:
        inner = document.get(sections[0])
        if not isinstance(inner, Mapping):
            return document
        return {**document, sections[0]: _renamed(dict(inner), sections[1:], former, key)}
    if former not in document or key in document:
        return document
    return {key if name == former else name: value for name, value in document.items()}
