"""From when on the cap lets a tenant lose more, as its losses leave the window."""

from muster.domain.ids import TenantId
from muster.domain.policy import DEFAULT_POLICY
from scheduler.caps import Refills
from scheduler.model import ReclaimLoss, Workload
from scheduler.topology import NEVER_MS
from tests.scheduler.fleets import NOW_MS

A, B = TenantId("a"), TenantId("b")
WINDOW_MS = round(DEFAULT_POLICY.reclaim.window_s * 1000)


def refills(*losses: ReclaimLoss) -> Refills:
    return Refills(Workload(NOW_MS, losses=losses), DEFAULT_POLICY)


def test_each_victim_waits_for_all_of_its_tenant_before_it() -> None:
    lost = refills(ReclaimLoss(A, 8, NOW_MS - 1_000), ReclaimLoss(A, 8, NOW_MS - 3_000), ReclaimLoss(B, 8, NOW_MS))
    victims = [(5, A, 8), (2, A, 8), (7, B, 8), (3, A, 8), (1, A, 8)]
    found = lost.moments_ms(victims, {A: 8.0, B: 0.0})
    assert found == {
        5: NOW_MS,
        2: NOW_MS - 3_000 + WINDOW_MS,
        7: NOW_MS + WINDOW_MS,
        3: NOW_MS - 1_000 + WINDOW_MS,
        1: NEVER_MS,
    }


def test_a_loss_that_has_left_the_window_gives_nothing_back_again() -> None:
    found = refills(ReclaimLoss(A, 8, NOW_MS - WINDOW_MS)).moments_ms([(0, A, 8)], {A: 0.0})
    assert found == {0: NEVER_MS}
