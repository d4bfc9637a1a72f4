"""Environment of a program, as a person types it: a virtual environment, or a container with its mounts."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.cli.framework.field_help import field_help
from muster.cli.framework.options import unfit

Venv = Annotated[Path | None, typer.Option(help=field_help("venv", "Its Python runs it."))]
Image = Annotated[str | None, typer.Option(help=field_help("Container.image"))]
Engine = Annotated[str | None, typer.Option(help=field_help("engine", "podman, docker or enroot."))]
Mounts = Annotated[
    list[str] | None, typer.Option("--mount", help=field_help("mounts", "SOURCE[:TARGET][:rw], may be repeated."))
]
User = Annotated[str | None, typer.Option("--user", help=field_help("Container.user"))]


def environment_of(
    venv: Path | None, image: str | None, engine: str | None, mounts: list[str] | None, user: str | None
) -> dict[str, Any]:
    """Return the specification's fields for it; none if no option is given."""
    said: dict[str, Any] = {} if venv is None else {"venv": os.path.normpath(venv.absolute())}
    if image is None:
        if engine is not None or mounts or user is not None:
            given = "--engine" if engine is not None else "--mount" if mounts else "--user"
            raise unfit(given, "it is an option of containers: give --image too")
        return said
    container: dict[str, Any] = {"image": image, "mounts": [_mount_of(words) for words in mounts or []]}
    if engine is not None:
        container["engine"] = engine
    if user is not None:
        container["user"] = user
    return {**said, "container": container}


def _mount_of(words: str) -> dict[str, Any]:
    parts = words.split(":")
    has_access = len(parts) > 1 and parts[-1] in {"rw", "ro"}
    paths, access = (parts[:-1], parts[-1]) if has_access else (parts, "ro")
    if not 1 <= len(paths) <= 2 or not all(path.startswith("/") for path in paths):  # source and target
        raise unfit("--mount", f"{words!r} is not /SOURCE[:/TARGET][:rw]")
    return {"source": paths[0], "target": paths[1] if len(paths) > 1 else None, "read_only": access == "ro"}
