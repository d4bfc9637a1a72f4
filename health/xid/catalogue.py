"""The XID catalogue: one row a code, kept as data in ``knowledge.json``.

Codes 1 to 173 are there, including codes that no driver sends any longer or yet. Rows are NVIDIA's XID catalogue
(columns ``nvidia`` and ``scope``), reconciled where tools disagree (``class``, ``action``, ``severity``, and ``why``
wherever we differ). Severities: a code that asks for a reset, a reboot or manual work on the hardware condemns; one
that a program causes by itself is INFO; one to be watched is WARNING.

``threatens_correctness``: a job on the GPU may have computed with wrong data. That is 48, 64, 95, 140, 171 and 172; not
94 (the driver ends the one program that read it), nor 79, 119, 120 (the GPU stops and gives no wrong result).
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from health.xid.recovery import Action
from muster.domain.evidence.findings import Severity


class XidClass(StrEnum):
    """The kind of action that a code calls for."""

    IGNORE = "ignore"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    RESTART_VM = "restart_vm"
    REBOOT = "reboot"
    WORKFLOW = "workflow"
    MONITOR = "monitor"
    HARDWARE = "hardware"


@dataclass(frozen=True, slots=True)
class XidEntry:
    """One code. ``nvidia``: the class that NVIDIA gives it, None where it gives none.

    ``scope``: the architectures whose drivers report it, empty where any may. ``announced_by_154_since``: the driver
    branch (such as 565) from which on an XID 154 with the driver's own recovery action accompanies it, 0 where it
    always did, None where none does: below it the catalogue alone decides. ``is_in_use``: the driver's catalogue names
    a use for it.
    """

    code: int
    name: str
    xid_class: XidClass
    nvidia: XidClass | None
    action: Action
    severity: Severity
    threatens_correctness: bool
    scope: tuple[str, ...]
    source: str
    why: str = ""
    announced_by_154_since: int | None = None
    is_in_use: bool = True


def _entry(row: dict[str, Any]) -> XidEntry:
    return XidEntry(
        code=row["code"],
        name=row["name"],
        xid_class=XidClass(row["class"]),
        nvidia=XidClass(row["nvidia"]) if row["nvidia"] is not None else None,
        action=Action(row["action"]),
        severity=Severity[row["severity"]],
        threatens_correctness=row["threatens_correctness"],
        scope=() if row["scope"] == "all" else tuple(row["scope"]),
        source=row["source"],
        why=row.get("why", ""),
        announced_by_154_since=row.get("announced_by_154_since"),
        is_in_use=row.get("is_in_use", True),
    )


KNOWLEDGE: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("knowledge.json").read_text(encoding="utf-8"))
"""All that is known of XIDs, as the file has it: ``codes``, and the texts of NVLink errors (``nvlink.py``)."""

CATALOGUE: Final = {entry.code: entry for entry in map(_entry, KNOWLEDGE["codes"])}
"""Code → its row. Part of the package, read once at import."""


def entry_of(code: int) -> XidEntry:
    """Return the row of ``code``. An unknown code is watched and shown, and never resets or reboots anything."""
    return CATALOGUE.get(code) or XidEntry(
        code=code,
        name="unknown to the catalogue",
        xid_class=XidClass.MONITOR,
        nvidia=None,
        action=Action.MONITOR,
        severity=Severity.WARNING,
        threatens_correctness=False,
        scope=(),
        source="none",
    )


def action_of(code: int, *, nvml: Action | None = None, xid_154: Action | None = None) -> Action:
    """Return the action for ``code``: the driver's own request by NVML, else by XID 154's text, else the catalogue's.

    ``NONE`` is the request of a driver that has noticed no fault, ``MONITOR`` is an unknown number: neither decides.
    """
    told = (word for word in (nvml, xid_154) if word not in {None, Action.NONE, Action.MONITOR})
    return next(told, None) or entry_of(code).action
