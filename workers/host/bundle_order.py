"""The bundle in an attempt's order: where its folder is, how the host gets it, and the program's paths in it."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.domain.job.bundle_spec import BUNDLE_IN_CONTAINER, is_in_bundle
from muster.settings import Settings
from muster.wire.host import PACKAGES, SOURCE_PACKAGES, Order, PartBundle, PartEnvironment, PartGit
from workers.host.content.places import CONTENT, WORK

_GIT: Final = "git"
BUNDLE_CAPABILITIES: Final = frozenset({"bundle", "environment", _GIT})
"""Capabilities of a host that has a place for bundles."""


def lacks_git(capability: str) -> bool:
    """Return whether the capability is the one of git, and this host has none for the programs of jobs."""
    return capability == _GIT and shutil.which("git", path=os.defpath) is None


@dataclass(frozen=True, slots=True)
class BundlesHost:
    """How this host gets bundles: by whose address and key, and how much space all copies have.

    ``index``: the operator's sources of packages, from which it builds environments. ``builds``: its capabilities by
    these. ``node_id``: the host's.
    """

    state_dir: Path
    api_url: str
    key_file: Path
    ca_file: Path | None
    cache_bytes: int
    index: Mapping[str, Any] = field(default_factory=dict)
    builds: tuple[str, ...] = ()
    node_id: str = ""


def package_index(settings: Settings) -> dict[str, Any]:
    """Return the operator's sources of packages on this host, as ``PackageIndex`` of ``muster.environments`` has them.

    That package is not imported here: `muster run` imports this, and builds no environment.
    """
    return {
        "url": settings.package_index,
        "wheelhouse": None if settings.wheelhouse is None else str(settings.wheelhouse),
        "certificate": None if settings.package_index_ca is None else str(settings.package_index_ca),
        "hosts": list(settings.package_index_hosts),
        "source_builds": settings.source_builds,
    }


def building_capabilities(index: Mapping[str, Any], *, can_isolate: bool) -> tuple[str, ...]:
    """Return what a host with these sources of packages builds. ``can_isolate``: a build's code can be cut off here."""
    if index.get("url") is None and index.get("wheelhouse") is None:
        return ()
    is_for_source = {"anywhere": True, "isolated": can_isolate}.get(index["source_builds"], False)
    return (PACKAGES, SOURCE_PACKAGES) if is_for_source else (PACKAGES,)


def bundle_of(order: Order, at: BundlesHost | None, attempt: Path, user: dict[str, Any], python: str) -> dict[str, Any]:
    """Return the part of ``order.json`` about the bundle, with all paths of the program; empty without one.

    ``python``: the host's interpreter, for which environments are built.

    Raises:
        ValueError: the host has none.
    """
    if order.bundle is None:
        return {}
    if at is None:
        raise ValueError("this host has no place for bundles")
    folder = at.state_dir / WORK / attempt.name
    seen_at = str(folder) if order.container is None else BUNDLE_IN_CONTAINER
    command = order.argv and is_in_bundle(order.argv[0])
    argv = (_inside(seen_at, order.argv[0].removeprefix("./")), *order.argv[1:]) if command else order.argv
    return {
        "script": None if order.script is None else _inside(seen_at, order.script),
        "command": argv or None,
        "working_dir": _inside(seen_at, order.working_dir or ""),
        "bundle": {
            **_fetch_of(order, order.bundle, at, folder, user),
            "git": None if order.bundle.git is None else _git_of(order.bundle.git, at),
            "environment": None if order.environment is None else _environment_of(order.environment, at, python),
            "seen_at": seen_at,
        },
    }


def _fetch_of(order: Order, bundle: PartBundle, at: BundlesHost, folder: Path, user: dict[str, Any]) -> dict[str, Any]:
    """Return what ``fetch_process`` reads, and ``fetch_s``."""
    return {
        "digest": bundle.digest,
        "tenant_id": bundle.tenant_id,
        "fetch_s": bundle.fetch_s,
        "part_id": order.attempt_id,
        "fence": order.fence,
        "folder": str(folder),
        "content_dir": str(at.state_dir / CONTENT),
        "attempts_dir": str(at.state_dir / "attempts"),
        "cache_bytes": at.cache_bytes,
        "free_bytes": bundle.disk_free_bytes,
        "are_linked": user.get("uid") is not None,
        "owner": _owner_of(order, user),
        "api_url": at.api_url,
        "key_file": str(at.key_file),
        "ca_file": None if at.ca_file is None else str(at.ca_file),
    }


def _git_of(git: PartGit, at: BundlesHost) -> dict[str, Any]:
    return {**msgspec.to_builtins(git), "node_id": at.node_id}


def _environment_of(environment: PartEnvironment, at: BundlesHost, python: str) -> dict[str, Any]:
    recipe = msgspec.to_builtins(environment)
    build_s = recipe.pop("build_s")
    return {"recipe": recipe, "build_s": build_s, "python": python, "index": at.index}


def _owner_of(order: Order, user: dict[str, Any]) -> tuple[int, int] | None:
    """Return user and group of the program: the job's own, or the one that its container names."""
    if (uid := user.get("uid")) is not None:
        return uid, uid
    if order.container is None or order.container.user is None:
        return None
    number, _, group = order.container.user.partition(":")
    return int(number), int(group)


def _inside(folder: str, path: str) -> str:
    return path if path.startswith("/") else f"{folder}/{path}".rstrip("/")
