"""The one rule of withdrawals, for the planner, the control plane and the simulator. Pure."""

from muster.domain.states import ReclaimState


def may_be_withdrawn(state: ReclaimState, *, is_delivered: bool) -> bool:
    """Return whether a reclaim whose hold has ended is withdrawn, so that its victim continues.

    It is, as long as no host has received the notice. A victim that was notified leaves all the same: its program may
    have begun to save and leave.
    """
    return state is ReclaimState.NOTIFIED and not is_delivered
