"""Origin of a checkpoint: hashes of code, configuration and data, and the checkpoint before it.

``code_sha256`` is the script's own. If the script is in a git work tree, ``git_commit`` is read from git's files.
Whether a file was changed since (``git_is_dirty``) is found in the background by git itself, with hooks and file
watchers off. It stays null if git does not answer within seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from muster.train.checkpoint.manifest import Manifest
    from muster.train.data.datasets import Dataset

_GIT_S = 10.0
_MOST_CONFIG_BYTES = 16 << 10
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_QUIET_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_CHANGES = (
    ("code_changed", "code", ("code_sha256", "git_commit", "git_is_dirty", "bundle")),
    ("config_changed", "configuration", ("config_sha256", "spec_sha256")),
    ("data_changed", "data", ("data_sha256",)),
)


def require_config(config: object) -> None:
    """Raise ValueError if ``config`` is no JSON object."""
    if config is None:
        return
    try:
        text = json.dumps(config, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as fault:
        raise ValueError(f"config must be what JSON can hold, such as vars(options): {fault}") from None
    if not text.startswith("{"):
        raise ValueError(f"config must be a mapping of names to values, not a {type(config).__name__}")


class Lineage:
    """Lineage of one run. It is read at once, in a thread of its own; ``as_document`` waits for it."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        data: Sequence[Dataset] = (),
        *,
        spec_sha256: str | None = None,
        bundle: str | None = None,
        script: Path | None = None,
        is_requested: bool = True,
    ) -> None:
        """Begin to read the lineage. ``bundle``: the digest of the job's. ``script``: the program; None: the script of
        this process.

        ``is_requested``: ``as_document`` will be called.

        Raises:
            ValueError: ``config`` is no JSON object.
        """
        require_config(config)
        self._found: dict[str, Any] = {
            "config_sha256": None if config is None else _sha256_of(config),
            "config": config if config is not None and _is_short(config) else None,
            "spec_sha256": spec_sha256,
            "bundle": bundle,
            "data_sha256": _of_data(data),
            "data": [{"source": str(each.source), "sha256": each.sha256} for each in data],
            "python_version": platform.python_version(),
        }
        self._script = script or _main_script()
        self._looking = threading.Thread(target=self._check, name="muster-lineage", daemon=True)
        if is_requested:
            self._looking.start()

    def as_document(self, *, parent: str, rng: str) -> dict[str, Any]:
        """Return the lineage for a manifest. ``parent``: the generation that training continued from; empty: from the
        start.

        ``rng``: how this attempt's ranks got their random numbers (``rng.policy``).
        """
        self._looking.join()
        return {**self._found, "parent": parent or None, "rng": rng}

    def _check(self) -> None:
        self._found |= code_of(self._script)


def changes(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (code, sentence) for each of code, configuration and data that is known of both and differs."""
    found: list[tuple[str, str]] = []
    if before is None:
        return found
    for code, what, names in _CHANGES:
        other = [name for name in names if _differs(before, now, name)]
        if other:
            said = ", ".join(f"{name} {_short(before[name])} → {_short(now[name])}" for name in other)
            words = f"resumed with other {what} than the checkpoint was made with: {said}"
            found.append((code, words))
    return found


def word_of(about: Manifest) -> dict[str, Any]:
    """Return the lineage of a checkpoint for a message: without the unbounded fields, which stay in its manifest."""
    told = {name: value for name, value in (about.lineage or {}).items() if name not in {"config", "data"}}
    return {**told, "torch_version": about.torch_version, "world_size": about.world_size}


def code_of(script: Path | None) -> dict[str, Any]:
    """Return the facts about a program's files; null for a fact that cannot be found."""
    unknown: dict[str, Any] = dict.fromkeys(("code_sha256", "git_commit", "git_is_dirty"))
    if script is None:
        return unknown
    try:
        with script.open("rb") as file:
            unknown["code_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        tree = next((each for each in script.resolve().parents if (each / ".git").exists()), None)
    except OSError:
        return unknown
    if tree is None:
        return unknown
    return {**unknown, "git_commit": commit_of(tree), "git_is_dirty": _is_dirty(tree)}


def commit_of(tree: Path) -> str | None:
    """Return the commit that is checked out, by git's own files; None if they do not state it."""
    try:
        folder = tree / ".git"
        if folder.is_file():  # a linked work tree, or a submodule
            folder = tree / folder.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        shared = folder
        if (folder / "commondir").exists():
            shared = folder / (folder / "commondir").read_text(encoding="utf-8").strip()
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return _commit(head)
        name = head.removeprefix("ref:").strip()
        for place in (folder / name, shared / name):
            if place.is_file():
                return _commit(place.read_text(encoding="utf-8").strip())
        packed = (shared / "packed-refs").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((_commit(line.split()[0]) for line in packed if line.endswith(f" {name}")), None)


def _is_dirty(tree: Path) -> bool | None:
    """Return whether a tracked file was changed. Git runs none of the tree's hooks."""
    command = [*_QUIET_GIT, "-C", str(tree), "status", "--porcelain", "--untracked-files=no", "--ignore-submodules"]
    try:
        answer = subprocess.run(  # noqa: S603  # git, with our own words; no shell
            command, capture_output=True, check=False, timeout=_GIT_S, stdin=subprocess.DEVNULL, env=_git_environment()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return bool(answer.stdout.strip()) if answer.returncode == 0 else None


def _git_environment() -> dict[str, str]:
    """Return an environment that names no other tree, no other configuration and no helper."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


def _main_script() -> Path | None:
    for name in (sys.argv[0] if sys.argv else "", getattr(sys.modules.get("__main__"), "__file__", None) or ""):
        if name and Path(name).is_file():
            return Path(name)
    return None


def _of_data(data: Sequence[Dataset]) -> str | None:
    """Return one dataset's own hash; for several, a hash of all in the order in which they were named."""
    hashes = [each.sha256 for each in data]
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest() if hashes else None


def _sha256_of(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _is_short(config: Mapping[str, Any]) -> bool:
    return len(json.dumps(config)) <= _MOST_CONFIG_BYTES


def _commit(text: str) -> str | None:
    return text if _COMMIT.fullmatch(text) else None


def _differs(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> bool:
    return before.get(name) is not None and now.get(name) is not None and before[name] != now[name]


def _short(value: object) -> str:
    return value[:12] if isinstance(value, str) else str(value).lower()
