"""Versions of the system beneath the GPUs by the names of ``HOST_READING_TEXTS``: kernel, network cards."""

from functools import partial
from pathlib import Path
from typing import Final

from agents.host.condition import DEADLINE_S
from agents.host.files import folders_in, read_text
from agents.probes.deadline import Callers

_BYTES: Final = 256


def host_words(root: Path, callers: Callers) -> dict[str, str]:
    """Return the versions that can be read.

    A card's firmware may have to answer for its version: it delays only itself.
    """
    found = {
        "kernel_release": _word(root / "proc" / "sys" / "kernel" / "osrelease"),
        "nic_driver": _word(root / "sys" / "module" / "mlx5_core" / "version"),
    }
    readers = {f"firmware:{device.name}": partial(_word, device / "fw_ver") for device in _cards(root)}
    answers = callers.all_within(DEADLINE_S, readers)
    told = [answer for answer in answers.values() if not isinstance(answer, BaseException)]
    if told and len(told) == len(answers):  # the firmware of a card that does not answer is unknown
        found["nic_firmware"] = "+".join(sorted({version for version in told if version}))
    return {name: word for name, word in found.items() if word}


def _cards(root: Path) -> list[Path]:
    """Return network cards of InfiniBand and RoCE; a virtual function has its card's firmware."""
    devices = folders_in(root / "sys" / "class" / "infiniband")
    return [device for device in devices if not (device / "device" / "physfn").exists()]


def _word(path: Path) -> str:
    return (read_text(path, _BYTES) or "").strip()
