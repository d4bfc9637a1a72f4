"""This host's disks, as the kernel numbers them: limits of input and output are set for each by its number."""

from __future__ import annotations

from pathlib import Path

_SYSTEM = Path("/sys/block")
_NO_DISKS = ("loop", "ram", "zram", "sr", "fd")
"""Devices in memory, or on another device that is limited itself."""


def block_devices(system: Path = _SYSTEM) -> list[str]:
    """Return ``major:minor`` of each whole disk that has a size."""
    found = []
    for folder in sorted(system.glob("*")):
        if folder.name.rstrip("0123456789") in _NO_DISKS:
            continue
        try:
            if int((folder / "size").read_text(encoding="ascii")) > 0:
                found.append((folder / "dev").read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            continue
    return found
