"""Which links are down, and what was at their other end: what a cable's ticket needs."""

import pytest

from health.detectors.registry import judge_signal
from muster.domain.evidence.findings import EventKind
from muster.domain.evidence.state_readings import words_text
from tests.health.case_factory import POLICY
from tests.health.limits.limit import reported


@pytest.mark.parametrize(
    ("values", "ends", "summary"),
    [
        ({"nvlink_links_down": 2.0, "nvlink_links": 18.0}, "", "2 of 18 NVLinks are down"),
        ({"nvlink_links_down": 2.0, "nvlink_down_bits": 136.0}, "", "2 NVLinks are down: 3, 7"),
        (
            {"nvlink_links_down": 2.0, "nvlink_links": 18.0, "nvlink_down_bits": 136.0},
            "3/switch/0000:05:00.0+7/unknown",
            "2 of 18 NVLinks are down: 3 to switch 0000:05:00.0, 7",
        ),
        (
            {"nvlink_links_to_nothing": 1.0, "nvlink_to_nothing_bits": 1.0},
            "0/switch/0000:05:00.0",
            "1 NVLinks are up to nothing that the driver knows: 0",
        ),
    ],
)
def test_links_are_named_where_agents_report_them(values: dict[str, float], ends: str, summary: str) -> None:
    text = words_text({"nvlink_ends_down": ends})
    (found,) = judge_signal(reported(EventKind.GPU_STATE, values, text), POLICY)
    assert found.summary == summary
