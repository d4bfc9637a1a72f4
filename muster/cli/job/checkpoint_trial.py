"""Trial of a generation as a resume makes it: its files are decrypted and unpacked, as far as this machine can."""

import importlib.util
import os
from pathlib import Path
from typing import Final

from muster.train.checkpoint import sealing
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.keys import KeyFileError, Keyring, MissingKeyError
from muster.train.checkpoint.manifest import FileRecord, Manifest, UnusableError
from muster.train.checkpoint.storage.disk_store import DiskStore
from muster.train.checkpoint.storage.stores import Store

_KEY_FILE: Final = "MUSTER_CHECKPOINT_KEY_FILE"
NO_TORCH: Final = "torch is not installed here: the bytes were compared, and not unpacked as a resume does."


class UntriedError(Exception):
    """This machine lacks what the trial takes."""


def try_restore(store: Store, about: Manifest) -> None:
    """Unpack each file of a verified generation, one at a time.

    Raises:
        UntriedError: there is no torch or no key here.
        UnusableError: a resume could not use it.
        OSError: the store does not answer.
    """
    try:
        if importlib.util.find_spec("torch") is None:
            raise UntriedError(NO_TORCH)
        from muster.train.checkpoint import trial
        from muster.train.parallel.shards import CoverageError
    except ImportError as fault:
        raise UntriedError(NO_TORCH) from fault
    keyring = None if about.key_id is None else _keyring(about.key_id)
    for file in about.files:
        try:
            trial.unpacked(file, _content(store, about, file, keyring))
        except CoverageError as fault:
            raise UnusableError(str(fault), is_damage=False) from fault


def _keyring(key_id: str) -> Keyring:
    named = os.environ.get(_KEY_FILE)
    if not named:
        raise UntriedError(f"It is encrypted, and {_KEY_FILE} names no keys: the stored bytes were compared alone.")
    try:
        keyring = Keyring.read(Path(named))
        keyring.key(key_id)
        sealing.require_cipher()
    except (KeyFileError, MissingKeyError, sealing.MissingCipherError) as fault:
        raise UntriedError(f"It is encrypted, and was not decrypted: {fault}") from fault
    return keyring


def _content(store: Store, about: Manifest, file: FileRecord, keyring: Keyring | None) -> bytes | bytearray | Path:
    name = Generation(about.step, about.fence).name
    if keyring is None or about.key_id is None:
        return store.folder / name / file.name if isinstance(store, DiskStore) else store.verified_part(about, file)
    try:
        return sealing.opened(store.verified_part(about, file), keyring.key(about.key_id), f"{name}/{file.name}")
    except sealing.NotOpenedError as fault:
        raise UnusableError(f"{file.name} cannot be decrypted: {fault}") from fault
