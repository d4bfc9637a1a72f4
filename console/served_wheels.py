"""Wheels that this control plane serves: of its own version, with their hashes, from the folder of `make wheels`."""

import hashlib
import html
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster import __version__

FOLDER: Final = Path(__file__).parent / "wheels"
REQUIRES_PYTHON: Final = ">=3.11"
BASE: Final = "muster-base"
CLIENT: Final = "muster-client"
RUNTIME: Final = "muster-train"
PROJECTS: Final = (BASE, CLIENT, RUNTIME)
PREFIX: Final = "/install"


@dataclass(frozen=True, slots=True)
class ServedWheel:
    project: str
    name: str
    content: bytes
    sha256: str

    @property
    def path(self) -> str:
        """Return the path from the root of the server, with the hash that an installer checks."""
        return f"{PREFIX}/wheels/{self.name}#sha256={self.sha256}"

    def requirement(self, address: str) -> str:
        """Return a requirement that names this very file: no index is asked for it."""
        return f"{self.project} @ {address}{self.path}"


class ServedWheels:
    """The wheels of ``folder``, read again when one of its files has changed."""

    def __init__(self, folder: Path = FOLDER, version: str = __version__) -> None:
        self._folder = folder
        self._version = version
        self._seen: Sequence[object] = ()
        self._wheels: Mapping[str, ServedWheel] = {}
        self._lock = threading.Lock()

    def by_project(self) -> Mapping[str, ServedWheel]:
        """Return project → wheel; one that was not built for this version is missing."""
        paths = {project: self._folder / self._name_of(project) for project in PROJECTS}
        stats = {project: path.stat() for project, path in paths.items() if path.is_file()}
        seen = [(project, stat.st_mtime_ns, stat.st_size, stat.st_ino) for project, stat in stats.items()]
        with self._lock:
            if seen != self._seen:
                self._wheels = {project: _read(project, paths[project]) for project in stats}
                self._seen = seen
            return self._wheels

    def named(self, name: str) -> ServedWheel | None:
        """Return the wheel of this file's name."""
        return next((wheel for wheel in self.by_project().values() if wheel.name == name), None)

    def requirements(self, project: str, address: str) -> str | None:
        """Return a requirements file for ``project`` and the base, or None if one of them was not built."""
        wheels = self.by_project()
        if project not in wheels or BASE not in wheels:
            return None
        return "".join(f"{wheels[each].requirement(address)}\n" for each in (BASE, project))

    def _name_of(self, project: str) -> str:
        return f"{project.replace('-', '_')}-{self._version}-py3-none-any.whl"


def _read(project: str, path: Path) -> ServedWheel:
    content = path.read_bytes()
    return ServedWheel(project, path.name, content, hashlib.sha256(content).hexdigest())


def index_page(title: str, links: Mapping[str, str], *, requires_python: str = "") -> str:
    """Return a page of a simple index (PEP 503). ``links``: text → address."""
    attribute = f' data-requires-python="{html.escape(requires_python)}"' if requires_python else ""
    lines = [f'<a href="{html.escape(to)}"{attribute}>{html.escape(text)}</a><br>' for text, to in links.items()]
    head = (
        f'<meta charset="utf-8"><meta name="pypi:repository-version" content="1.0"><title>{html.escape(title)}</title>'
    )
    return f"<!doctype html>\n<html><head>{head}</head><body>\n" + "\n".join(lines) + "\n</body></html>\n"
