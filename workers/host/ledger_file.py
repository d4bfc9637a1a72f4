"""The launcher's ledger on disk: the claims of this host survive the launcher."""

import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec
import structlog

from muster.domain.lifecycle.host import HostLedger
from muster.durable import write_durably

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_log = structlog.get_logger(__name__)


class LauncherIsRunningError(Exception):
    """Another launcher holds this state folder."""


def current_boot_id() -> str:
    return BOOT_ID_FILE.read_text(encoding="ascii").strip()


class LedgerFile:
    """Ledger of one launcher at a time: the lock is held for the process's life.

    Raises:
        LauncherIsRunningError: another process holds the lock.
    """

    def __init__(self, state_dir: Path) -> None:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = state_dir / "ledger.json"
        self._lock = os.open(state_dir / "launcher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            message = f"another launcher works in {state_dir}"
            raise LauncherIsRunningError(message) from None

    def load(self, boot_id: str) -> HostLedger:
        """Return the stored ledger, or an empty one. An unreadable file is set aside and logged: it was never
        half-written.
        """
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=HostLedger)
        except FileNotFoundError:
            return HostLedger(boot_id)
        except msgspec.MsgspecError as error:
            aside = self._path.with_suffix(".unreadable")
            self._path.replace(aside)
            _log.error("ledger_unreadable", kept_as=str(aside), fault=str(error))
            return HostLedger(boot_id)

    def save(self, ledger: HostLedger) -> None:
        write_durably(self._path, msgspec.json.encode(ledger))

    def close(self) -> None:
        os.close(self._lock)
