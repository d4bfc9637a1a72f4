"""A program in a container: the engine's command line, from plain data.

The container shares the host's process numbers, network and shared memory: ranks are signalled and cleaned up one by
one, NCCL reaches its peers and its neighbours, and the rank entry that runs the program is ours, read-only. The
program's environment is in a file of mode 0600 and never in the command line, which every user of the host can read.
It gets no capability, and the GPUs of the allocation alone, by their UUIDs.

Command lines: docs.podman.io podman-run(1), docs.docker.com docker run, github.com/NVIDIA/enroot doc/cmd/start.md; GPUs
by the Container Device Interface (github.com/cncf-tags/container-device-interface) or Docker's ``--gpus``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.children import StartError
from workers.host.supervisor.container.mounts import (
    MountError,
    hand_over,
    make_checkpoints,
    require_plain,
    require_there,
)
from workers.host.supervisor.container.process_limits import docker_limits, podman_limits
from workers.host.supervisor.missing import ENGINE
from workers.host.supervisor.order_parts import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workers.host.supervisor.order import Order
    from workers.host.supervisor.order_parts import Container, HostLimits
    from workers.host.supervisor.user.job_user import JobUser

PODMAN, DOCKER, ENROOT = "podman", "docker", "enroot"
CONTAINER_ID = "container.id"
"""File that podman and docker write after they have created the container, and not before."""
CONTAINER_PID = "container.pid"
"""File that podman (3.2 and later) writes when the program is about to run, and never if its runtime refused."""
_NVIDIA = "/dev/nvidiactl"
_ENVIRONMENT = "container.env"
_OURS = Path(__file__).parents[1]
"""Folder of the rank entry and its imports."""
_RDMA = Path("/dev/infiniband")


class NoEngineError(StartError):
    """This host has no engine that runs the job's image."""

    lacks = ENGINE


class Engine:
    __slots__ = ("kind", "path")

    def __init__(self, kind: str, path: str) -> None:
        self.kind = kind
        self.path = path


class Contained:
    """Command that starts the container, in ``environment``; as ``user``, or as our own user if it is None."""

    __slots__ = ("command", "environment", "user")

    def __init__(self, command: list[str], environment: dict[str, str], user: JobUser | None) -> None:
        self.command = command
        self.environment = environment
        self.user = user


class HostShare:
    """The part of the host that a container may use, and its user there (``uid:gid``).

    ``mounts``: ours and the job's. ``gpus``: UUIDs; ``devices``: files; ``ulimits``: words of ``process_limits``.
    """

    __slots__ = ("devices", "gpus", "limits", "mounts", "ulimits", "user")

    def __init__(
        self,
        mounts: Sequence[Mount],
        gpus: Sequence[str],
        devices: Sequence[str],
        limits: HostLimits,
        ulimits: Sequence[str],
        user: str,
    ) -> None:
        self.mounts = mounts
        self.gpus = gpus
        self.devices = devices
        self.limits = limits
        self.ulimits = ulimits
        self.user = user


def find_engine(container: Container, search: str | None = None) -> Engine:
    """Return the engine that the job names, or one of the host that runs its image. ``search``: folders as in ``PATH``.

    Raises:
        NoEngineError: the host has none: its fault, and another host may.
    """
    fitting = (ENROOT,) if container.image.startswith("/") else (PODMAN, DOCKER)
    wanted = (container.engine,) if container.engine else fitting
    for kind in wanted:
        if path := shutil.which(kind, path=search):
            return Engine(kind, path)
    raise NoEngineError(f"this host has no container engine for the job: {' nor '.join(wanted)} is not on its path")


def container_name(order: Order) -> str:
    return f"muster-{order.attempt_id}-{order.node_rank}"


def engine_command(
    engine: Engine,
    container: Container,
    program: Sequence[str],
    share: HostShare,
    *,
    name: str,
    folder: Path,
    variables: Sequence[str],
    working_dir: str,
) -> list[str]:
    """Return the whole command line, word by word. ``folder``: has the container's files.

    ``variables``: names that enroot takes from its own environment; the others read the file of ``write_environment``.

    Raises:
        MountError: a mount that the engine would read as another.
    """
    require_plain(share.mounts)
    if engine.kind == ENROOT:
        return _enroot_command(
            engine, container, program, variables=variables, working_dir=working_dir, mounts=share.mounts
        )
    return [
        *(engine.path, "run", "--rm", f"--name={name}", f"--cidfile={folder / CONTAINER_ID}", "--pull=missing"),
        *("--network=host", "--ipc=host", "--pid=host", f"--user={share.user}", f"--workdir={working_dir}"),
        *("--cap-drop=ALL", "--security-opt=no-new-privileges", f"--env-file={folder / _ENVIRONMENT}"),
        *((f"--pidfile={folder / CONTAINER_PID}",) if engine.kind == PODMAN else ()),
        *(*share.ulimits, "--entrypoint="),
        *(f"--mount=type=bind,source={one.source},target={one.target}{_readonly(one)}" for one in share.mounts),
        *_gpu_words(engine, share.gpus),
        *(f"--device={path}" for path in share.devices),
        *_limit_words(share.limits),
        container.image,
        *program,
    ]


def _enroot_command(
    engine: Engine,
    container: Container,
    program: Sequence[str],
    *,
    variables: Sequence[str],
    working_dir: str,
    mounts: Sequence[Mount],
) -> list[str]:
    """Return enroot's command line. Enroot has no daemon: its programs are our children, in our group, under its
    limits.

    It has no working folder.
    """
    places = (
        f"--mount={one.source}:{one.target}{':none:x-create=auto,bind,ro' if one.is_read_only else ''}"
        for one in mounts
    )
    names = (f"--env={name}" for name in variables)
    return [engine.path, "start", *places, *names, container.image, "env", "-C", working_dir, *program]


def _readonly(mount: Mount) -> str:
    return ",readonly" if mount.is_read_only else ""


def _gpu_words(engine: Engine, gpus: Sequence[str]) -> list[str]:
    if not gpus:
        return []
    if engine.kind == PODMAN:
        return [f"--device=nvidia.com/gpu={uuid}" for uuid in gpus]
    return [f'--gpus="device={",".join(gpus)}"']  # one field of CSV, so its comma is quoted


def _limit_words(limits: HostLimits) -> list[str]:
    """Return the attempt's limits as options, since the engine makes a group of its own for the container."""
    words = [f"--pids-limit={-1 if limits.pids is None else limits.pids}"]  # engines have bounds of their own
    if limits.memory_bytes is not None:
        words += [f"--memory={limits.memory_bytes}", f"--memory-swap={limits.memory_bytes}"]
    if limits.cpus is not None:
        words.append(f"--cpus={limits.cpus:g}")
    return words


def command_of(order: Order, folder: Path, environment: Mapping[str, str], program: Sequence[str]) -> Contained:
    """Return the command that runs ``program`` in the job's container, with its environment; its files are made on
    disk.

    Raises:
        StartError: the host has no engine, or may not run one as that user.
        MountError: a mount of the job is not on this host, or closed to the job's user; or the job names another user.
    """
    container = order.container
    if container is None:
        raise ValueError("the order has no container")
    engine = find_engine(container)
    own, user = f"{os.getuid()}:{os.getgid()}", _user_of(order, container)
    scratch = files.scratch_path(folder)
    ours = [Mount(str(folder), read_only=False), Mount(str(_OURS))]
    if folder not in scratch.parents:
        ours.append(Mount(str(scratch), read_only=False))
    if checkpoints := order.env.get("MUSTER_CHECKPOINT_DIR"):
        _make_checkpoints(order, checkpoints)
        ours.append(Mount(checkpoints, read_only=False))
    copies = order.env.get("MUSTER_SCRATCH_DIR")  # the host's; a job cannot name it
    if copies and Path(copies).is_dir():
        ours.append(Mount(copies, read_only=False))
    else:  # files that the container writes elsewhere are removed with it
        environment = {**environment, "MUSTER_SCRATCH_DIR": ""}
    if order.bundle is not None:
        ours.append(Mount(str(order.bundle["folder"]), str(order.bundle["seen_at"]), read_only=False))
    if order.outputs is not None:
        ours.append(Mount(str(order.outputs["folder"]), str(order.outputs["seen_at"]), read_only=False))
    if order.secrets.names:
        ours.append(Mount(str(order.secrets.place(folder))))
    mounts = [*container.mounts, *_dataset_mounts(order, container)]
    require_there(mounts, order.user)
    if user != own and order.user.uid is None:
        written = [checkpoints, None if order.outputs is None else order.outputs["folder"]]
        hand_over(folder, scratch, [Path(path) for path in written if path], user)
    write_environment(folder, environment)
    share = HostShare(
        [*ours, *mounts],
        gpus=order.gpus if has_nvidia() else (),
        devices=rdma_devices() if order.gpus else (),
        limits=order.limits,
        ulimits=podman_limits() if engine.kind == PODMAN else docker_limits(),
        user=user,
    )
    words = engine_command(
        engine,
        container,
        program,
        share,
        name=container_name(order),
        folder=folder,
        variables=sorted(environment),
        working_dir=str(order.working_dir),
    )
    # Enroot is no daemon's client: its program is its child, with the user that started it.
    runs_as = order.user if engine.kind == ENROOT else None
    return Contained(words, engine_environment(engine, order, environment), runs_as)


def check_container(order: Order, container: Container) -> None:
    """Check before the start: an engine, and all mounts for the job's user. The engine itself finds or pulls the image.

    Raises:
        StartError: the host has no engine, or may not run one as that user.
        MountError: a mount of the job is not on this host, or closed to the job's user.
    """
    find_engine(container)
    _user_of(order, container)
    require_there([*container.mounts, *_dataset_mounts(order, container)], order.user)


def _dataset_mounts(order: Order, container: Container) -> list[Mount]:
    """Return a mount for each dataset at its own path, unless the job itself mounts something there."""
    taken = {mount.target for mount in container.mounts}
    return [Mount(dataset["path"]) for dataset in order.datasets if dataset["path"] not in taken]


def _make_checkpoints(order: Order, path: str) -> None:
    """Make the checkpoint folder. A failure is the tenant's fault if the job names the folder, else the host's."""
    is_named = order.checkpoints is None
    try:
        make_checkpoints(path, order.user, is_named=is_named)
    except MountError as fault:
        if is_named:
            raise
        raise StartError(str(fault)) from fault


def _user_of(order: Order, container: Container) -> str:
    """Return the user that the program runs as inside. If jobs have users of their own, each has its own and
    no other.
    """
    own, uid = f"{os.getuid()}:{os.getgid()}", order.user.uid
    if uid is not None:
        if container.user is not None and container.user != f"{uid}:{uid}":
            raise MountError("programs of this host run as their job's own user: leave the container's user out")
        return f"{uid}:{uid}"
    user = container.user or own
    if user != own and os.getuid() != 0:
        raise StartError(f"a container as user {user}: the host worker runs as {own}, and only root may choose another")
    return user


def write_environment(folder: Path, environment: Mapping[str, str]) -> Path:
    """Write one ``NAME=value`` a line, which is all that engines read: no quotes, no line breaks. Mode 0600."""
    path = folder / _ENVIRONMENT
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(f"{name}={value}\n".encode() for name, value in environment.items())
    return path


def engine_environment(engine: Engine, order: Order, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's own environment: the host's variables, our marks; for enroot also the program's."""
    is_ours = engine.kind != ENROOT or order.user.uid is None  # else it runs as the job's user, whose home is another
    passed = ("PATH", "HOME", "USER", "XDG_RUNTIME_DIR") if is_ours else ("PATH",)
    own = {name: os.environ[name] for name in passed if name in os.environ}
    marks = dict(mark.split("=", 1) for mark in order.marks)
    if engine.kind != ENROOT:
        return {"PATH": os.defpath, **own, **marks}
    gpus = {"NVIDIA_VISIBLE_DEVICES": ",".join(order.gpus) or "void"}
    return {"PATH": os.defpath, **environment, **own, **marks, **gpus}


def rdma_devices(folder: Path = _RDMA) -> list[str]:
    """Return the devices by which NCCL reaches other hosts without TCP."""
    return sorted(str(path) for path in folder.glob("*") if path.is_char_device())


def has_nvidia() -> bool:
    """Return whether this host has GPUs that engines pass to containers; simulated ones are none."""
    return Path(_NVIDIA).exists()
