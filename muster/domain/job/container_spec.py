"""The container in which a job's program runs on each host, as a tenant asks for it."""

import re
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from muster.domain.strict import AbsolutePath, Line, StrictModel, absolute_path

_SEPARATORS: Final = re.compile(r"[\s,:\"']")
_REFERENCE: Final = re.compile(
    r"[a-z0-9][a-z0-9._-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_USER: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}", re.ASCII)
_MOST_ID: Final = 2**32 - 2
_HOSTS_OWN: Final = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/lib", "/var/run")
"""A container gets none of the host's own: its users, its devices, its sockets."""
_CONTAINERS_OWN: Final = ("/dev", "/proc", "/sys")


def _without_separators(path: str) -> str:
    if _SEPARATORS.search(path):
        raise ValueError("must have no blank, comma, colon or quote: a container engine reads them as separators")
    return path.rstrip("/") or "/"


MountPath = Annotated[AbsolutePath, AfterValidator(_without_separators)]


class ContainerEngine(StrEnum):
    PODMAN = "podman"
    DOCKER = "docker"
    ENROOT = "enroot"


class Mount(StrictModel):
    """A folder or file of the host, seen inside at ``target``, or at its own path where that is None."""

    source: MountPath
    target: MountPath | None = None
    read_only: bool = True

    @field_validator("source")
    @classmethod
    def _nothing_of_the_hosts_own(cls, path: str) -> str:
        if path == "/" or _is_below(path, _HOSTS_OWN):
            raise ValueError(f"must be neither / nor in {', '.join(_HOSTS_OWN)}: these are the host's own")
        return path

    @field_validator("target")
    @classmethod
    def _nothing_of_the_containers_own(cls, path: str | None) -> str | None:
        if path is not None and (path == "/" or _is_below(path, _CONTAINERS_OWN)):
            raise ValueError(f"must be neither / nor in {', '.join(_CONTAINERS_OWN)}: the engine sets these up")
        return path


class Container(StrictModel):
    """The image in which a program runs: by podman or docker, whichever the host has, or by enroot for a file.

    Its digest alone means the same on all hosts and at each attempt.
    """

    image: Annotated[Line, Field(max_length=512)]
    engine: ContainerEngine | None = Field(default=None, strict=False)
    mounts: tuple[Mount, ...] = Field(default=(), max_length=64, strict=False)
    user: Line | None = None

    @field_validator("image")
    @classmethod
    def _is_reference_or_file(cls, image: str) -> str:
        if image.startswith("/"):
            return _without_separators(absolute_path(image))
        if not _REFERENCE.fullmatch(image):
            raise ValueError(
                "must be a reference such as registry.example/team/image@sha256:<64 hex digits> or name:tag, in lower"
                " case, or for enroot the absolute path of a squashfs file"
            )
        return image

    @field_validator("user")
    @classmethod
    def _is_by_numbers(cls, user: str | None) -> str | None:
        if user is not None and not (_USER.fullmatch(user) and all(int(part) <= _MOST_ID for part in user.split(":"))):
            raise ValueError(f"must be uid:gid in numbers up to {_MOST_ID}, such as 1000:1000")
        return user

    @model_validator(mode="after")
    def _fits_its_engine(self) -> Self:
        is_file = self.image.startswith("/")
        if is_file and self.engine not in {None, ContainerEngine.ENROOT}:
            raise ValueError(f"engine {self.engine} takes an `image` by reference; a file is for enroot")
        if self.engine is ContainerEngine.ENROOT and not is_file:
            raise ValueError("engine enroot takes as `image` the absolute path of a squashfs file")
        if is_file and self.user is not None:
            raise ValueError("enroot runs as the host worker's user; leave `user` out")
        targets = [mount.target or mount.source for mount in self.mounts]
        if doubled := sorted({path for path in targets if targets.count(path) > 1}):
            raise ValueError(f"`mounts` has more than one at {', '.join(doubled)}")
        return self


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
