"""The outputs in an attempt's order: which folder the program gets for them, and where its patterns count from."""

from pathlib import Path
from typing import Any, Final

import msgspec

from muster.wire.host import Order
from workers.host.bundle_order import BundlesHost
from workers.host.content.places import OUTPUTS
from workers.host.outputs.setting_aside import OutputOrder
from workers.host.supervisor.user.job_user import REACHES

OUTPUT_CAPABILITY: Final = "outputs"
OUTPUT_IN_CONTAINER: Final = "/muster/output"


def outputs_of(order: Order, at: BundlesHost | None, attempt: Path) -> dict[str, Any]:
    """Return the part of ``order.json`` about outputs, and make the folder of all output folders; empty without any."""
    if order.outputs is None or at is None:
        return {}
    folders = at.state_dir / OUTPUTS
    folders.mkdir(parents=True, exist_ok=True, mode=REACHES)
    folder = folders / attempt.name
    below, in_place = _working_folder(order)
    outputs = OutputOrder(
        folder=str(folder),
        seen_at=str(folder) if order.container is None else OUTPUT_IN_CONTAINER,
        patterns=order.outputs.patterns,
        max_bytes=order.outputs.max_bytes,
        max_files=order.outputs.max_files,
        below=below,
        in_place=in_place,
    )
    return {"outputs": msgspec.to_builtins(outputs)}


def _working_folder(order: Order) -> tuple[str | None, str | None]:
    """Return the working folder, as a path in the bundle or of the tenant's own; both None: it is in an image, or the
    attempt's own, which ends with it.
    """
    named = order.working_dir or ""
    if order.bundle is not None and not named.startswith("/"):
        return named, None
    return None, named if named and order.container is None else None
