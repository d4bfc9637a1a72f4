"""A program in a container: the engine's command line, from plain data; and the container's end.

The container shares the host's process numbers, network and shared memory: ranks are signalled and cleaned up one by
one, NCCL reaches its peers and its neighbours, and the rank entry that stands beside the program is ours, read-only.
What the program finds in its environment goes by a file of mode 0600 and never by the command line, which every user of
the host can read. It gets no capability, and the GPUs of the allocation alone, by their UUIDs.

Command lines: docs.podman.io podman-run(1), docs.docker.com docker run, github.com/NVIDIA/enroot doc/cmd/start.md; GPUs
by the Container Device Interface (github.com/cncf-tags/container-device-interface) or Docker's ``--gpus``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.children import StartError
from workers.host.supervisor.order import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workers.host.supervisor.job_user import JobUser
    from workers.host.supervisor.order import Container, HostLimits, Order

PODMAN, DOCKER, ENROOT = "podman", "docker", "enroot"
ENGINE_FAILED, NOT_RUN, NOT_FOUND = 125, 126, 127
"""Exit codes of podman and docker: no container was made; its program may not be run; the image has no such program."""
_ENGINE_SAYS = ("Error: ", "docker: ")
_NVIDIA = "/dev/nvidiactl"
_ENVIRONMENT = "container.env"
_OURS = Path(__file__).parent
"""The rank entry and what it imports."""
_REMOVAL_S = 60.0


class Engine:
    __slots__ = ("kind", "path")

    def __init__(self, kind: str, path: str) -> None:
        self.kind = kind
        self.path = path


class Contained:
    """``command`` starts it, in ``environment``; as ``user``, or as we run where it is None."""

    __slots__ = ("command", "environment", "user")

    def __init__(self, command: list[str], environment: dict[str, str], user: JobUser | None) -> None:
        self.command = command
        self.environment = environment
        self.user = user


class MountError(Exception):
    """What the job asks for its container is not there, or not for it: the tenant's to mend."""


def find_engine(container: Container, search: str | None = None) -> Engine:
    """The one that the job names, or what the host has that runs its image. ``search``: folders as in ``PATH``.

    Raises:
        StartError: the host has none: its fault, and another host may.
    """
    fitting = (ENROOT,) if container.image.startswith("/") else (PODMAN, DOCKER)
    wanted = (container.engine,) if container.engine else fitting
    for kind in wanted:
        if path := shutil.which(kind, path=search):
            return Engine(kind, path)
    raise StartError(f"this host has no container engine for the job: {' nor '.join(wanted)} is not on its path")


def container_name(order: Order) -> str:
    return f"muster-{order.attempt_id}-{order.node_rank}"


def engine_command(
    engine: Engine,
    container: Container,
    program: Sequence[str],
    *,
    name: str,
    environment_file: Path,
    variables: Sequence[str],
    working_dir: str,
    mounts: Sequence[Mount],
    gpus: Sequence[str],
    limits: HostLimits,
    user: str,
) -> list[str]:
    """The whole command line, word by word. ``gpus``: UUIDs; ``mounts``: ours and the job's.

    ``variables``: names that enroot takes from its own environment; the others read ``environment_file``.
    """
    if engine.kind == ENROOT:
        return _enroot_command(engine, container, program, variables=variables, working_dir=working_dir, mounts=mounts)
    return [
        *(engine.path, "run", "--rm", f"--name={name}", "--pull=missing"),
        *("--network=host", "--ipc=host", "--pid=host", f"--user={user}", f"--workdir={working_dir}"),
        *("--cap-drop=ALL", "--security-opt=no-new-privileges", f"--env-file={environment_file}"),
        *("--ulimit=host" if engine.kind == PODMAN else "--ulimit=memlock=-1:-1", "--entrypoint="),
        *(f"--mount=type=bind,source={one.source},target={one.target}{_readonly(one)}" for one in mounts),
        *_gpu_words(engine, gpus),
        *_limit_words(limits),
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
    """Enroot is no daemon: its programs are our children, in our group, under its limits. It has no working folder."""
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
    """The engine makes a group of its own for the container, so the attempt's limits go there too."""
    words = [f"--pids-limit={-1 if limits.pids is None else limits.pids}"]  # engines have bounds of their own
    if limits.memory_bytes is not None:
        words += [f"--memory={limits.memory_bytes}", f"--memory-swap={limits.memory_bytes}"]
    if limits.cpus is not None:
        words.append(f"--cpus={limits.cpus:g}")
    return words


def command_of(order: Order, folder: Path, environment: Mapping[str, str], program: Sequence[str]) -> Contained:
    """The command that runs ``program`` in the job's container, its environment, and what is ready for it on disk.

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
        Path(checkpoints).mkdir(parents=True, exist_ok=True, mode=0o700)
        ours.append(Mount(checkpoints, read_only=False))
    if order.secrets.names:
        ours.append(Mount(str(order.secrets.place(folder))))
    _require_there(container.mounts, order.user)
    if user != own and order.user.uid is None:
        _hand_over(folder, [scratch, *([Path(checkpoints)] if checkpoints else [])], user)
    words = engine_command(
        engine,
        container,
        program,
        name=container_name(order),
        environment_file=write_environment(folder, environment),
        variables=sorted(environment),
        working_dir=str(order.working_dir),
        mounts=[*ours, *container.mounts],
        gpus=order.gpus if has_nvidia() else (),
        limits=order.limits,
        user=user,
    )
    # Enroot is no daemon's client: what it runs is its child, as whoever started it.
    runs_as = order.user if engine.kind == ENROOT else None
    return Contained(words, engine_environment(engine, order, environment), runs_as)


def _user_of(order: Order, container: Container) -> str:
    """As whom the program runs inside. Where jobs have users of their own, each has its own and no other."""
    own, uid = f"{os.getuid()}:{os.getgid()}", order.user.uid
    if uid is not None:
        if container.user is not None and container.user != f"{uid}:{uid}":
            raise MountError("programs of this host run as their job's own user: leave the container's user out")
        return f"{uid}:{uid}"
    user = container.user or own
    if user != own and os.getuid() != 0:
        raise StartError(f"a container as user {user}: the host worker runs as {own}, and only root may choose another")
    return user


def _require_there(mounts: Sequence[Mount], user: JobUser) -> None:
    """An engine that runs as root mounts whatever is named, so what the job's user may not reach is refused here."""
    for mount in mounts:
        found = os.path.realpath(mount.source)
        if not os.path.exists(found):  # noqa: PTH110  # nothing of a path object is needed
            raise MountError(f"the mount {mount.source} does not exist on this host")
        if found != mount.source:  # the job's words were judged by the path that they name
            raise MountError(f"the mount {mount.source} is a link to {found}; name that one")
        if not user.may(found, os.R_OK):
            whose = "the host worker's user" if user.uid is None else f"the job's user {user.uid}"
            raise MountError(f"the mount {mount.source} is closed to {whose}")


def _hand_over(folder: Path, others: Sequence[Path], user: str) -> None:
    """What the container's user writes becomes its own; of the attempt's folder it may pass through, and no more."""
    uid, gid = map(int, user.split(":"))
    inside = (folder / name for name in (files.RANKS, files.PIPES, files.LAUNCH, files.FLIGHT))
    for place in (*inside, *others):
        for path in (place, *place.glob("*")):
            os.chown(path, uid, gid)
    folder.chmod(0o711)


def write_environment(folder: Path, environment: Mapping[str, str]) -> Path:
    """One ``NAME=value`` a line, which is all that engines read: no quotes, no line breaks. Mode 0600."""
    path = folder / _ENVIRONMENT
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(f"{name}={value}\n".encode() for name, value in environment.items())
    return path


def engine_environment(engine: Engine, order: Order, environment: Mapping[str, str]) -> dict[str, str]:
    """What the engine itself runs in: the host's words, our marks; for enroot also what the program is to find."""
    own = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "XDG_RUNTIME_DIR") if name in os.environ}
    marks = dict(mark.split("=", 1) for mark in order.marks)
    if engine.kind != ENROOT:
        return {"PATH": os.defpath, **own, **marks}
    gpus = {"NVIDIA_VISIBLE_DEVICES": ",".join(order.gpus) or "void"}
    return {"PATH": os.defpath, **environment, **own, **marks, **gpus}


def has_nvidia() -> bool:
    """Whether this host has GPUs of the kind that engines hand on; simulated ones are none."""
    return Path(_NVIDIA).exists()


def why_not_started(order: Order, exit_code: int | None, said: str) -> str | None:
    """Why the container's program never ran, by the engine's exit code and words; None where it did."""
    if order.container is None or exit_code not in {ENGINE_FAILED, NOT_RUN, NOT_FOUND}:
        return None
    lines = [line.strip() for line in said.splitlines() if line.startswith(_ENGINE_SAYS)]
    if not lines:
        return None
    return f"the container was not started: {lines[-1]}"


def remove(order: Order) -> None:
    """Where the engine still keeps it: its program was killed, or the engine's client was."""
    if order.container is None:
        return
    try:
        engine = find_engine(order.container)
    except StartError:
        return
    if engine.kind == ENROOT:
        return
    import subprocess  # noqa: PLC0415  # only here, and after the program

    environment = engine_environment(engine, order, {})
    for mark in order.marks:  # or it would be among those that are to be killed
        environment.pop(mark.split("=", 1)[0])
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # its processes are found by their marks in any case
        subprocess.run(  # noqa: S603  # the engine's own command, no shell
            removal(engine, container_name(order)),
            env=environment,
            timeout=_REMOVAL_S,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def removal(engine: Engine, name: str) -> list[str]:
    """Ends what runs in it at once, and says nothing where there is none."""
    return [engine.path, "rm", "--force", *(("--time=0", "--ignore") if engine.kind == PODMAN else ()), name]
