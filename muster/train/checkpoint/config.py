"""The store and keys of this job's checkpoints, found by each rank for itself and agreed on by all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.train.checkpoint import sealing
from muster.train.checkpoint.keys import KeyFileError, Keyring
from muster.train.checkpoint.storage import stores
from muster.train.checkpoint.storage.bucket import MissingExtraError

if TYPE_CHECKING:
    from muster.train.checkpoint.storage.stores import Store
    from muster.train.parallel.ranks import Agreement
    from muster.train.runtime.environment import Environment


class UnfitEnvironmentError(RuntimeError):
    """A rank cannot use the store or the keys that its environment names."""


def join(around: Environment, ranks: Agreement) -> tuple[Store, Keyring | None]:
    """Return the store and keys of all ranks. ``around`` names a location.

    All ranks encrypt under rank 0's first key, wherever it is in their own files. Raises UnfitEnvironmentError, on
    every rank.
    """
    store, keyring, fault = _own(around)
    told = ranks.gather((fault, [] if keyring is None else keyring.ids))
    for rank, (fault_there, _) in enumerate(told):
        if fault_there:
            raise UnfitEnvironmentError(f"rank {rank}: {fault_there}")
    first = told[0][1][:1]
    for rank, (_, ids) in enumerate(told):
        if bool(ids) != bool(first) or not set(first) <= set(ids):
            raise UnfitEnvironmentError(
                f"rank {rank} holds the checkpoint keys [{', '.join(ids)}] and rank 0 encrypts under"
                f" [{', '.join(first)}]: MUSTER_CHECKPOINT_KEY_FILE must name the same keys on all hosts"
            )
    if store is None:
        raise UnfitEnvironmentError("no place for checkpoints was named")
    return store, None if keyring is None else keyring.encrypting_under(first[0])


def _own(around: Environment) -> tuple[Store | None, Keyring | None, str]:
    """Return this rank's store and keys, or the reason why it cannot use them."""
    try:
        place = around.checkpoint_place
        store = None if place is None else stores.store_of(place, around.checkpoint_credentials_file)
        if around.checkpoint_key_file is None:
            return store, None, ""
        sealing.require_cipher()
        return store, Keyring.read(around.checkpoint_key_file), ""
    except (MissingExtraError, sealing.MissingCipherError, KeyFileError) as fault:
        return None, None, str(fault)
    except OSError as fault:
        return None, None, f"the checkpoint store cannot be used: {fault}"
