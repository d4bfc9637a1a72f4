"""The traits that evidence gets when it is made, by its detector and fault."""

import pytest

from health.detectors.registry import NATURES
from health.detectors.traits import traits_of
from health.evidence.state import code_of, lasts
from muster.domain.evidence.traits import LASTING, Nature
from tests.health.case_factory import evidence


@pytest.mark.parametrize("detector", NATURES)
def test_a_fault_lasts_if_its_detector_states_states(detector: str) -> None:
    found = evidence("one", detector=detector, fault=detector)
    assert found.traits.nature is NATURES[detector]
    assert lasts(found) is (NATURES[detector] in LASTING)


def test_a_detector_that_is_unknown_states_moments() -> None:
    assert traits_of("of_a_later_release", "of_a_later_release:x").nature is Nature.MOMENT


def test_a_reading_and_a_log_entry_of_one_fault_share_what_they_are_shown_as() -> None:
    assert traits_of("xid", "xid:79").shown_as == traits_of("gpu_lost", "gpu_lost").shown_as
    assert (
        traits_of("nvlink_down", "nvlink_down").weighs_as == traits_of("fabric_state", "fabric_state:failed").weighs_as
    )
    assert traits_of("xid", "xid:95").weighs_as == "xid:95"


def test_a_lost_gpu_fell_off_the_bus_though_no_log_states_it() -> None:
    assert code_of(evidence("lost", detector="gpu_lost", fault="gpu_lost")) == 79
    assert code_of(evidence("lost", detector="gpu_lost", fault="gpu_lost", values={"code": 119.0})) == 119
    assert code_of(evidence("hot", detector="temperature", fault="temperature:gpu")) is None


@pytest.mark.parametrize(
    ("detector", "fault", "trait"),
    [
        ("row_remap", "row_remap:failure", "needs_replacement"),
        ("pcie_link", "pcie_link:width", "is_read_under_load"),
        ("clock_events", "clock_events:hw_slowdown", "ends_unseen"),
        ("peers", "peers:power_w", "ends_unseen"),
    ],
)
def test_few_faults_have_a_trait_of_their_own(detector: str, fault: str, trait: str) -> None:
    traits = traits_of(detector, fault)
    own = {name for name in ("needs_replacement", "is_read_under_load", "ends_unseen") if getattr(traits, name)}
    assert own == {trait}
