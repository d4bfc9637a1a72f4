"""Small wheels, and an index of the simple form that serves them on a loopback port."""

import base64
import hashlib
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    tag: str = "py3-none-any",
    files: Mapping[str, str] | None = None,
    requires: tuple[str, ...] = (),
    command: str | None = None,
) -> Path:
    """Write a wheel with the module ``name`` and return its path. ``command``: a script that calls ``name.main``."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    members = {f"{name}/__init__.py": f"VERSION = {version!r}\ndef main():\n    print({name!r}, VERSION)\n"}
    members |= files or {}
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    members[f"{about}/METADATA"] = metadata + "".join(f"Requires-Dist: {one}\n" for one in requires)
    members[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    if command is not None:
        members[f"{about}/entry_points.txt"] = f"[console_scripts]\n{command} = {name}:main\n"
    record = "".join(f"{path},sha256={_record_hash(text)},{len(text.encode())}\n" for path, text in members.items())
    members[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n"
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in members.items():
            wheel.writestr(zipfile.ZipInfo(member), text)
    return path


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def locked(*wheels: Path) -> str:
    """Return the wheels as lines of a requirements file, each with its hash."""
    return "".join(f"{_named(path)} \\\n    --hash=sha256:{sha256_of(path)}\n" for path in wheels)


def source_lock(house: Path, code: str) -> str:
    """Add a source distribution whose back end runs ``code`` when it is built. Return its lock."""
    house.mkdir(exist_ok=True)
    wheel = make_wheel(house.parent / "prebuilt", "delta")
    root = house.parent / "delta-1.0"
    root.mkdir()
    (root / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        "[project]\nname = 'delta'\nversion = '1.0'\n"
    )
    (root / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: delta\nVersion: 1.0\n")
    (root / wheel.name).write_bytes(wheel.read_bytes())
    (root / "backend.py").write_text(
        "import os, shutil\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        f"    {code}\n"
        f"    shutil.copy({wheel.name!r}, folder)\n    return {wheel.name!r}\n"
    )
    path = house / "delta-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(root, "delta-1.0")
    return f"delta==1.0 --hash=sha256:{sha256_of(path)}\n"


def _named(path: Path) -> str:
    name, version, *_ = path.name.split("-")
    return f"{name}=={version}"


def _record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@contextmanager
def served_index(root: Path, *wheels: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve wheels and source distributions as a package index; yield its URL, and the paths that were asked for."""
    for wheel in wheels:
        folder = root / "simple" / wheel.name.split("-")[0].replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        files = (one for one in folder.iterdir() if one.name != "index.html")
        (folder / "index.html").write_text(
            "".join(f'<a href="{one.name}#sha256={sha256_of(one)}">{one.name}</a>' for one in files)
        )
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, code: object = "-", size: object = "-") -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
