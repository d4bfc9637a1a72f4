"""Reports that the server refused permanently: a bounded number of them, kept for people who investigate the cause."""

from pathlib import Path
from typing import Final

import msgspec
import structlog

from agents.spool.entries import Identity
from muster.durable import write_durably

KEPT: Final = 32
MAX_CONTENT_BYTES: Final = 1 << 20
_log = structlog.get_logger(__name__)


class RefusedReports:
    """A folder with a file for each report, named so that the oldest is the first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.num_refused = 0

    def keep(self, identity: Identity, content: bytes, reason: str) -> None:
        """Keep a report. Raises nothing: on a full disk the count and the log remain."""
        self.num_refused += 1
        boot_id, seq = identity
        _log.error("report_refused", boot_id=boot_id, seq=seq, reason=reason)
        document = {
            "boot_id": boot_id,
            "seq": seq,
            "reason": reason,
            "report": content[:MAX_CONTENT_BYTES].decode("utf-8", "replace"),
        }
        try:
            self._folder.mkdir(exist_ok=True, mode=0o700)
            write_durably(self._folder / f"{seq:020d}.json", msgspec.json.encode(document))
            for old in sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("refused_report_not_kept", seq=seq, fault=str(error))
