"""Work folders go with their attempts, and the control plane receives which copies this host has."""

import threading
import time
from pathlib import Path
from typing import Final

import structlog

from muster.client.host import HostClient
from muster.client.transport import Problem, UnreachableError
from muster.domain.stored_content import FolderKind
from muster.wire.content import MAX_REPORTED, BundleReport
from muster.wire.host import PROTOCOL_VERSION
from workers.host.attempt_folder import FORGOTTEN
from workers.host.content import assembled, copies
from workers.host.content.places import BUILD, CONTENT, OUTPUTS, REMOVED, WORK
from workers.host.content.removal import remove_work_folder, sweep_removed
from workers.host.supervisor.files import ORDER

TURN_S: Final = 2.0
REPORT_AGAIN_S: Final = 3600.0
"""A report is repeated so often, since the control plane may have been restored to an earlier day."""
_NOT_THERE: Final = 404
_log = structlog.get_logger(__name__)


class BundleKeeper:
    """Keeper of one state folder. It has a thread of its own: to remove a large folder takes seconds."""

    def __init__(self, state_dir: Path, client: HostClient) -> None:
        self._state_dir = state_dir
        self._client = client
        self._reported: frozenset[str] | None = None
        self._report_at_s = 0.0

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.turn()
            stop.wait(TURN_S)

    def turn(self) -> None:
        self._remove_folders()
        for tenant in (self._state_dir / CONTENT).glob("*/"):
            copies.sweep(tenant)
        assembled.sweep(self._state_dir, self._state_dir / CONTENT)
        self._report()

    def _remove_folders(self) -> None:
        """Remove work and output folders whose attempt is forgotten here, or has never had an order."""
        for folder in [*(self._state_dir / WORK).glob("*"), *(self._state_dir / OUTPUTS).glob("*")]:
            attempt = self._state_dir / "attempts" / folder.name.removesuffix(BUILD)
            if (attempt / ORDER).exists() and not (attempt / FORGOTTEN).exists():
                continue
            try:
                remove_work_folder(folder)
            except OSError as fault:
                _log.warning("work_folder_left", folder=str(folder), fault=str(fault))
        try:
            sweep_removed(self._state_dir)
        except OSError as fault:
            _log.warning("work_folder_left", folder=str(self._state_dir / REMOVED), fault=str(fault))

    def _report(self) -> None:
        held = copies.copies_on(self._state_dir / CONTENT)
        bundles = (one for one in held if one.place.kind is FolderKind.BUNDLE)
        places = copies.whole_places(bundles)[:MAX_REPORTED]
        found = tuple(f"{place.tenant_id}/{place.digest}" for place in places)
        if frozenset(found) == self._reported and time.monotonic() < self._report_at_s:
            return
        try:
            self._client.report_bundles(BundleReport(protocol=PROTOCOL_VERSION, bundles=found))
        except UnreachableError:
            return
        except Problem as fault:
            if fault.status != _NOT_THERE:  # a server of before this release has no such route
                return
        self._reported = frozenset(found)
        self._report_at_s = time.monotonic() + REPORT_AGAIN_S
