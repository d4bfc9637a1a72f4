"""Static files, our own and fetched ones: read once, compressed once, served under their content's hash."""

import functools
import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"
PREFIX: Final = "/console/static"
FOREVER: Final = "public, max-age=31536000, immutable"
SERVED: Final = frozenset({".css", ".js", ".svg", ".woff2", ".txt"})
HTMX: Final = "vendor/htmx.min.js"
CHARTS: Final = "vendor/echarts.common.min.js"
FONTS: Final = {"Inter": "vendor/inter.woff2", "JetBrains Mono": "vendor/jetbrains-mono.woff2"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file. ``gzipped`` is None where the content is compressed by its own format."""

    content: bytes
    gzipped: bytes | None
    media_type: str
    digest: str


class StaticFiles:
    """Every file below ``folder`` by its path there. A file that changes gets another address."""

    def __init__(self, folder: Path = STATIC) -> None:
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in SERVED]
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in paths}
        self._files["fonts.css"] = _file(self._faces().encode(), "text/css")

    def has(self, name: str) -> bool:
        return name in self._files

    def url(self, name: str) -> str:
        """Return the file's address. Raises ``KeyError`` where there is no such file."""
        return f"{PREFIX}/{self._files[name].digest}/{name}"

    def find(self, digest: str, name: str) -> StaticFile | None:
        """Return the file; None for another digest too: an old page must not get new code."""
        found = self._files.get(name)
        return found if found is not None and found.digest == digest else None

    def names(self) -> list[str]:
        return list(self._files)

    def _faces(self) -> str:
        """Return font faces of the fetched fonts; without them the system's own fonts are used."""
        return "".join(
            f'@font-face{{font-family:"{family}";src:url("{self.url(name)}") format("woff2");'
            f"font-weight:100 900;font-display:swap}}\n"
            for family, name in FONTS.items()
            if self.has(name)
        )


def _read(path: Path) -> StaticFile:
    media_type = "font/woff2" if path.suffix == ".woff2" else mimetypes.guess_type(path.name)[0] or "text/plain"
    return _file(path.read_bytes(), media_type)


def _file(content: bytes, media_type: str) -> StaticFile:
    gzipped = None if media_type.startswith("font/") else _gzipped(content)
    if media_type.startswith("text/"):
        media_type = f"{media_type}; charset=utf-8"
    return StaticFile(content, gzipped, media_type, hashlib.sha256(content).hexdigest()[:16])


@functools.lru_cache(maxsize=64)
def _gzipped(content: bytes) -> bytes:
    """Compress each content once in a process, for any number of applications."""
    return gzip.compress(content, 9, mtime=0)
