"""Wheels that users install. The same sources give the same bytes.

Each file has one owner: what ``muster-client`` and ``muster-train`` share belongs to ``muster-base``, which both need,
so that removing either leaves the other whole. A wheel is a zip, so no build tool is needed.
"""

import base64
import hashlib
import os
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
BASE_FILES: Final = ("muster/__init__.py", "muster/py.typed")
"""The files that each of the other wheels needs, and none of them holds."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """Content of a wheel. ``files``: paths from the root of the checkout, and of the environment it is installed in.

    ``extras``: the requirement of each. ``commands``: name → module and function.
    """

    name: str
    summary: str
    files: Sequence[str]
    requires: Sequence[str] = ()
    extras: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the wheel of the checkout's version into ``folder`` and return its path."""
        version = project_version()
        stem = f"{self.name.replace('-', '_')}-{version}"
        metadata = f"{stem}.dist-info"
        contents = {path: (ROOT / path).read_bytes() for path in sorted(self.files)}
        contents[f"{metadata}/METADATA"] = self._metadata(version).encode()
        contents[f"{metadata}/WHEEL"] = (
            b"Wheel-Version: 1.0\nGenerator: muster\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        if self.commands:
            lines = "".join(f"{name} = {target}\n" for name, target in self.commands.items())
            contents[f"{metadata}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
        contents[f"{metadata}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
        record = f"{metadata}/RECORD"
        lines = "".join(_record(path, content) for path, content in contents.items())
        contents[record] = f"{lines}{record},,\n".encode()
        folder.mkdir(parents=True, exist_ok=True)
        return _write_zip(folder / f"{stem}-py3-none-any.whl", contents)

    def _metadata(self, version: str) -> str:
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {self.name}",
            f"Version: {version}",
            f"Summary: {self.summary}",
            f"License: {_project()['license']}",
            "Classifier: Private :: Do Not Upload",
            f"Requires-Python: {_project()['requires-python']}",
            *(f"Requires-Dist: {each}" for each in self.requires),
        ]
        for extra, needed in self.extras.items():
            lines += [f"Provides-Extra: {extra}", f"Requires-Dist: {needed}; extra == '{extra}'"]
        return "\n".join(lines) + "\n"


def base_wheel() -> Wheel:
    return Wheel("muster-base", "What every other wheel of Muster needs: the package muster itself.", BASE_FILES)


def project_version() -> str:
    return str(_project()["version"])


def project_requirements() -> list[str]:
    """Return the requirements of every process of Muster."""
    return [str(each) for each in _project()["dependencies"]]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _write_zip(path: Path, contents: Mapping[str, bytes]) -> Path:
    """Write under another name first: the control plane may be reading the folder."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with zipfile.ZipFile(draft, "w") as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return draft.replace(path)


def _record(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"
