"""The table of the field's rules: each by its source's number and window, what it finds there, and that a little less
finds nothing. ``tests.health.field`` holds it: the first column names the rule; the second, the detector's fault.

Where a number depends on a model, a register or a port, ``test_limits``, ``test_repeats`` and ``test_heat`` go through
all of them; here each rule stands once. XIDs have tables of their own (``test_xid_rows``).
"""

import pytest

from health.detectors.registry import RULES
from health.evidence.suppression import why_weightless
from muster.domain.policy.health import HealthPolicy
from tests.health.case_factory import POLICY
from tests.health.field.clocks import CLOCKS
from tests.health.field.judged import Rule, clocks
from tests.health.field.links import LINKS
from tests.health.field.memory import MEMORY
from tests.health.field.repetitions import AGAIN

TABLE: dict[str, Rule] = {**AGAIN, **MEMORY, **CLOCKS, **LINKS}
OWN_TABLES = {"xid", "sxid"}
"""Detectors whose rules are rows of a catalogue."""


def in_mode(detector: str, mode: str) -> HealthPolicy:
    return HealthPolicy.model_validate({"detectors": {detector: {"mode": mode}}})


@pytest.mark.parametrize("name", TABLE)
def test_each_rule_of_the_field_at_its_number_and_short_of_it(name: str) -> None:
    rule = TABLE[name]
    assert rule.at(POLICY)[rule.fault].severity is rule.severity
    assert rule.fault not in rule.short_of(POLICY)


@pytest.mark.parametrize("name", TABLE)
def test_each_rule_in_shadow_finds_as_much_and_weighs_nothing(name: str) -> None:
    rule = TABLE[name]
    found = rule.at(in_mode(rule.detector, "shadow"))[rule.fault]
    assert found.severity is rule.severity
    assert why_weightless(found) == "its rule is in shadow mode"


@pytest.mark.parametrize("name", TABLE)
def test_each_rule_that_is_off_finds_nothing(name: str) -> None:
    rule = TABLE[name]
    assert rule.fault not in rule.at(in_mode(rule.detector, "off"))


def test_each_rule_is_a_detectors_and_each_detectors_by_the_fields_word_is_a_rule() -> None:
    detectors = {rule.name for rule in RULES}
    of_ours = {rule.name for rule in RULES if rule.about.source.endswith("our own numbers")}
    tested = {rule.detector for rule in TABLE.values()}
    assert tested <= detectors
    assert detectors - tested - OWN_TABLES - of_ours == set()


@pytest.mark.parametrize("bit", [0x1, 0x4, 0x10, 0x100])
def test_what_holds_clocks_down_and_is_no_fault(bit: int) -> None:
    """Idle, the power cap, a peer's boost and a display."""
    assert clocks(bit, 10)(POLICY) == {}
