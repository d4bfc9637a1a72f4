"""The XID catalogue: its rows, the meaning of an unknown code, and the precedence of sources."""

import pytest

from health.xid.catalogue import CATALOGUE, XidClass, action_of, entry_of
from health.xid.recovery import SEVERITY_OF, Action, action_of_nvml, action_of_xid_154
from muster.domain.evidence.findings import Severity

LOG_154 = "NVRM: Xid (PCI:0000:b3:00): 154, GPU recovery action changed from 0x0 (None) to {}"


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 158, 167, 171, 172])
def test_what_requests_a_reset_a_reboot_or_hands_condemns(code: int) -> None:
    assert entry_of(code).severity is Severity.CONDEMNING


@pytest.mark.parametrize("code", [8, 11, 13, 25, 31, 32, 37, 38, 43, 44, 45, 60, 66, 67, 68, 69, 80, 106, 107, 137])
def test_what_a_program_can_bring_about_never_weighs(code: int) -> None:
    assert entry_of(code).severity is Severity.INFO


@pytest.mark.parametrize(
    ("code", "severity"),
    [
        (63, Severity.WARNING),
        (92, Severity.WARNING),
        (94, Severity.DEGRADED),
        (121, Severity.WARNING),
        (145, Severity.DEGRADED),
        (149, Severity.DEGRADED),
        (160, Severity.WARNING),
        (165, Severity.DEGRADED),
    ],
)
def test_what_is_to_be_watched_lies_between(code: int, severity: Severity) -> None:
    assert entry_of(code).severity is severity


def test_exactly_uncorrected_errors_threaten_correctness() -> None:
    assert {code for code, entry in CATALOGUE.items() if entry.threatens_correctness} == {48, 64, 95, 140, 171, 172}


@pytest.mark.parametrize(
    ("code", "nvidia"),
    [
        (13, XidClass.RESTART_APP),
        (38, XidClass.IGNORE),
        (44, XidClass.IGNORE),
        (62, XidClass.RESET_GPU),
        (63, XidClass.IGNORE),
        (68, XidClass.RESTART_APP),
        (79, XidClass.REBOOT),
        (94, XidClass.RESTART_APP),
        (109, XidClass.RESET_GPU),
        (136, XidClass.RESET_GPU),
        (143, XidClass.RESET_GPU),
        (151, XidClass.RESTART_VM),
        (168, None),
    ],
)
def test_nvidias_own_class_is_kept_where_tools_disagree(code: int, nvidia: XidClass | None) -> None:
    assert entry_of(code).nvidia is nvidia


@pytest.mark.parametrize("code", [0, 14, 58, 65, 173, 999])
def test_an_unknown_code_is_watched_and_resets_nothing(code: int) -> None:
    entry = entry_of(code)
    assert (entry.xid_class, entry.action, entry.severity) == (XidClass.MONITOR, Action.MONITOR, Severity.WARNING)


def test_every_row_is_whole_and_within_the_known_codes() -> None:
    assert sorted(CATALOGUE) == list(range(1, 174))
    for code, entry in CATALOGUE.items():
        assert 1 <= code <= 173
        assert entry.name
        assert entry.source
        assert (entry.nvidia is entry.xid_class) or entry.why or entry.source != "NVIDIA XID catalogue"


def test_only_what_condemns_requests_a_reset_or_reboot() -> None:
    harsh = {Action.RESET_GPU, Action.REBOOT_NODE, Action.REPLACE}
    for entry in CATALOGUE.values():
        assert entry.action not in harsh or entry.severity is Severity.CONDEMNING


def test_nvml_has_the_last_word_then_xid_154_then_the_catalogue() -> None:
    assert action_of(95) is Action.RESET_GPU
    assert action_of(95, xid_154=Action.REBOOT_NODE) is Action.REBOOT_NODE
    assert action_of(95, xid_154=Action.REBOOT_NODE, nvml=Action.DRAIN_P2P) is Action.DRAIN_P2P
    assert action_of(95, xid_154=Action.REBOOT_NODE, nvml=Action.NONE) is Action.REBOOT_NODE
    assert action_of(95, nvml=Action.MONITOR) is Action.RESET_GPU
    assert action_of(999) is Action.MONITOR


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("0x0 (None)", Action.NONE),
        ("0x1 (GPU Reset Required)", Action.RESET_GPU),
        ("0x2 (Node Reboot Required)", Action.REBOOT_NODE),
        ("0x3 (Drain P2P)", Action.DRAIN_P2P),
        ("0x4 (Drain and Reset)", Action.DRAIN_AND_RESET),
        ("0x2 (other text)", Action.REBOOT_NODE),
        ("0x9 (Something New)", Action.MONITOR),
        ("(Something New)", Action.MONITOR),
    ],
)
def test_xid_154_states_what_the_driver_requests(words: str, action: Action) -> None:
    assert action_of_xid_154(LOG_154.format(words)) is action


def test_a_bare_xid_154_states_nothing() -> None:
    assert action_of_xid_154("XID 154") is None


@pytest.mark.parametrize(
    ("value", "action", "severity"),
    [
        (0.0, Action.NONE, Severity.INFO),
        (1.0, Action.RESET_GPU, Severity.CONDEMNING),
        (2.0, Action.REBOOT_NODE, Severity.CONDEMNING),
        (3.0, Action.DRAIN_P2P, Severity.DEGRADED),
        (4.0, Action.DRAIN_AND_RESET, Severity.DEGRADED),
        (5.0, Action.MONITOR, Severity.WARNING),
        (6.0, Action.RESET_GPU, Severity.CONDEMNING),
        (7.0, Action.REBOOT_NODE, Severity.CONDEMNING),
    ],
)
def test_each_recovery_action_of_nvml(value: float, action: Action, severity: Severity) -> None:
    assert action_of_nvml(value) is action
    assert SEVERITY_OF[action] is severity


def test_an_unknown_recovery_action_of_nvml_is_watched() -> None:
    assert action_of_nvml(8.0) is Action.MONITOR
