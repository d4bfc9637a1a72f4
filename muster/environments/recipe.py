"""What an environment is built from, and the key by which one is built once."""

import hashlib
from pathlib import Path
from typing import Final, Literal

import msgspec

SourceBuilds = Literal["isolated", "anywhere", "never"]
"""Where source distributions are built, which runs their code: only where the host cuts them off, as a user of their
own in a network of their own; wherever a job allows it; nowhere.
"""
_FORMAT: Final = 2
"""Version of the stored form: another one builds each environment again."""


class PackageIndex(msgspec.Struct, frozen=True):
    """The operator's sources of packages: an index by URL, a folder of wheels, or both. No other one is reached.

    ``certificate``: a file of certificate authorities for the index; None for the system's. ``num_retries``: of a
    request that the index did not answer. ``hosts``: others, as ``host[:port]``, from which the index has files served.
    ``source_builds``: where source distributions may be built. ``proxy``: the address by which a build in a network
    of its own reaches these hosts.
    """

    url: str | None = None
    wheelhouse: str | None = None
    certificate: str | None = None
    num_retries: int = 3
    hosts: tuple[str, ...] = ()
    source_builds: SourceBuilds = "isolated"
    proxy: str | None = None


class Recipe(msgspec.Struct, frozen=True):
    """How an environment is made from a lock file of the work folder.

    ``lock``: its path in the folder. ``extras``, ``groups``: of the project, for a ``uv.lock`` alone. ``from_host``:
    patterns of packages that the host's own interpreter has, such as ``torch`` and ``nvidia-*``, and that are then not
    installed. ``allows_source``: source distributions may be built, which runs their code.
    """

    lock: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    from_host: tuple[str, ...] = ()
    allows_source: bool = False


def environment_key(recipe: Recipe, lock: bytes, project: bytes, *, interpreter: str, platform: str) -> str:
    """Return the key of what is built: equal for one tenant only where the result may be used for both.

    ``project``: the bytes of ``pyproject.toml`` next to a ``uv.lock``, with its extras and groups; empty for others.
    ``interpreter``: implementation and version, such as ``cpython-3.11``. ``platform``: as ``linux_x86_64_glibc_2.36``.
    """
    parts = (
        _FORMAT,
        msgspec.structs.replace(recipe, lock=Path(recipe.lock).name),
        hashlib.sha256(lock).hexdigest(),
        hashlib.sha256(project).hexdigest(),
        interpreter,
        platform,
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
