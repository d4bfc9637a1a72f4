"""XID 45 alone, and with the error that it cleans up after, whichever of the two is reported first."""

from dataclasses import replace

import pytest

from health.evidence.suppression import why_weightless
from muster.domain.evidence.findings import Severity, Source
from muster.domain.ids import GpuUuid
from tests.health.case_factory import NOW_MS, POLICY, SECOND, signal
from tests.health.field.judged import one_after_the_other, reported


def test_alone_it_is_reported_with_what_to_do_and_weighs_nothing() -> None:
    found = one_after_the_other((45, 0))(POLICY)
    assert found["cleanup_alone"].severity is Severity.INFO
    assert "restart the fabric manager" in found["cleanup_alone"].summary
    assert "xid:45" in found


def test_one_that_states_that_it_follows_errors_gets_no_advice() -> None:
    text = "Preemptive cleanup, due to previous errors"
    found = reported(signal(code=45, source=Source.KERNEL_LOG, text=text))(POLICY)
    assert set(found) == {"xid:45"}


def test_what_it_cleaned_up_after_may_be_reported_a_moment_later() -> None:
    found = one_after_the_other((45, 0), (13, 5 * SECOND))(POLICY)
    assert why_weightless(found["cleanup_alone"]) == ("it is the clean-up after another XID of the same seconds")
    later = one_after_the_other((45, 0), (13, 5 * SECOND + 1))(POLICY)
    assert why_weightless(later["cleanup_alone"]) is None


def test_an_xid_of_another_gpu_explains_nothing() -> None:
    beside = signal(code=31, gpu=GpuUuid("GPU-beside"), source=Source.KERNEL_LOG)
    assert "cleanup_alone" in reported(signal(code=45), elsewhere=[beside])(POLICY)


@pytest.mark.parametrize("code", [13, 79])
def test_another_xid_is_no_clean_up(code: int) -> None:
    again = replace(signal(code=code), signal_id="again", at_ms=NOW_MS + 60 * SECOND)
    assert "cleanup_alone" not in reported(signal(code=code), again)(POLICY)
