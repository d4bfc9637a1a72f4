"""The accounts of the ledger, in the order in which the first that matches counts."""

from enum import StrEnum
from typing import Final


class Account(StrEnum):
    """What a GPU's time was, in the order of precedence: the first account that claims a moment has it.

    First come the accounts of a GPU that is assigned to an attempt. What the attempt did counts there, whatever the
    standing of the GPU is: a job that runs on a cordoned host still trains. Then come the accounts of all other GPUs.

    LOST: no progress by a hang, and steps that a divergence or a corruption made worthless. RECLAIM_LOST: steps that
    are trained again after a reclaim; REPLAYED: after any other end or fault. STARTING: from the placement to the first
    step. SLOWED: the part of a step beyond the usual one while a straggler's verdict stands. IDLE: assigned without any
    of that. CLEANING: until the GPU is proved clean. NO_CONTACT: the control plane does not know. HOLD: kept free for
    a job. DRAINING: free on a host that its operator empties. PENDING: free while a job waits, by its binding reason.
    FREE: no job waits. UNEXPLAINED: a fault of this ledger; its bar is 0.
    """

    RETIRED = "retired"
    LOST = "lost"
    RECLAIM_LOST = "reclaim_lost"
    REPLAYED = "replayed"
    STARTING = "starting"
    SAVING = "saving"
    RESTORING = "restoring"
    SLOWED = "slowed"
    PRODUCTIVE = "productive"
    IDLE = "idle"
    CLEANING = "cleaning"
    REPAIR = "repair"
    QUARANTINED = "quarantined"
    CORDONED = "cordoned"
    BURN_IN = "burn_in"
    NO_CONTACT = "no_contact"
    UNPROVEN = "unproven"
    SUSPECT = "suspect"
    SPARE = "spare"
    HOLD = "hold"
    DRAINING = "draining"
    PENDING = "pending"
    FREE = "free"
    UNEXPLAINED = "unexplained"


PRECEDENCE: Final = {account: place for place, account in enumerate(Account)}
OF_ATTEMPTS: Final = frozenset(
    {
        Account.LOST,
        Account.RECLAIM_LOST,
        Account.REPLAYED,
        Account.STARTING,
        Account.SAVING,
        Account.RESTORING,
        Account.SLOWED,
        Account.PRODUCTIVE,
        Account.IDLE,
        Account.CLEANING,
    }
)
"""Accounts of time in which the GPU is assigned to an attempt, or is being cleaned after it: a tenant's use."""
CHARGED: Final = OF_ATTEMPTS - {Account.CLEANING}
"""Accounts that a tenant pays: all time for which its attempt had the GPU. The proof of cleanness is the fleet's."""
UNAVAILABLE: Final = frozenset(
    {Account.REPAIR, Account.QUARANTINED, Account.CORDONED, Account.BURN_IN, Account.NO_CONTACT, Account.UNPROVEN}
)
"""Accounts of time in which the fleet cannot give the GPU to a job."""
