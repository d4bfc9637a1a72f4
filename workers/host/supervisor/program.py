"""The running program: torchrun with its ranks, or a bare command. Starts it, signals it, notices its end."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from workers.host.supervisor import children, files
from workers.host.supervisor.container import end as container_end
from workers.host.supervisor.container.containers import check_container, command_of
from workers.host.supervisor.container.mounts import MountError
from workers.host.supervisor.interpreters import UnfitEnvironmentError, check_venv
from workers.host.supervisor.missing import PROGRAM, PYTHON, WORKING_FOLDER, lacks_of
from workers.host.supervisor.order import program_environment
from workers.host.supervisor.proof.cleaning import reap_children
from workers.host.supervisor.proof.processes import is_same_process, processes_of, read_process
from workers.host.supervisor.record.log_streams import LogStream
from workers.host.supervisor.record.train_socket import TrainSocket
from workers.host.supervisor.record.watch_socket import WatchSocket
from workers.host.supervisor.user.job_secrets import MissingSecretError
from workers.host.supervisor.user.job_user import REACHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workers.host.supervisor.cgroup.group import Group
    from workers.host.supervisor.order import Order
    from workers.host.supervisor.standby import Standby

_RANK_ENTRY = Path(__file__).with_name("rank_entry.py")
_LAUNCHER = "launcher"
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


class MissingProgramError(Exception):
    """The program or a path that the tenant named does not exist or may not be run. ``lacks``: as in ``missing``."""

    def __init__(self, words: str, lacks: str | None = PROGRAM) -> None:
        super().__init__(words)
        self.lacks = lacks


class Program:
    def __init__(self, folder: Path, order: Order, group: Group, standby: Standby | None = None) -> None:
        """Set up a program. ``standby``: a warm torchrun, used if it fits the order and discarded if not.

        ``group``: in which all of it runs, from its first instruction on.
        """
        self._folder = folder
        self._order = order
        self._group = group
        self._standby = standby
        if standby is not None and not standby.fits(order):
            standby.discard()
            self._standby = None
        self._redactor = order.secrets.redactor()
        self._kept_open: list[int] = []
        self._terminated: set[int] = set()
        self._listeners: dict[int, int] = {}
        self.streams: dict[str, LogStream] = {}
        self.train_socket: TrainSocket | None = None
        self.watch_socket: WatchSocket | None = None
        self.reaped: dict[int, int] = {}
        self.pid = 0
        self._advice: str | None = None
        self._environment: dict[str, str] = {}

    @property
    def exit_code(self) -> int | None:
        """Exit code of the main process; minus the signal's number if one ended it; None while it runs."""
        return container_end.code_of_program(self._order, self.reaped.get(self.pid))

    def has_ended(self) -> bool:
        return self.pid in self.reaped

    def prepare(self) -> list[str]:
        """Do all but the start itself; return the names of what was checked.

        Raises MissingProgramError for the tenant's fault, StartError or OSError for ours.
        """
        order = self._order
        scratch = files.scratch_path(self._folder)
        self._prepare_folders(scratch)
        if order.container is None and not order.working_dir.is_dir():
            raise MissingProgramError(f"the working directory {order.working_dir} does not exist", WORKING_FOLDER)
        if order.is_torchrun and order.container is None:
            self._require_script()
        self.train_socket = TrainSocket(self._folder, scratch / files.TRAIN_SOCKET, order.host_ranks, self._redactor)
        order.user.own(self.train_socket.path)
        self.watch_socket = WatchSocket(self._folder, scratch / files.WATCH_SOCKET, order.host_ranks, self._redactor)
        order.user.own(self.watch_socket.path)
        self._environment = {**program_environment(order, self._folder, scratch), **self._give_secrets()}
        if order.is_torchrun and order.container is None and order.venv is None:
            self._require_interpreter()
        try:
            if order.venv is not None:
                self._advice = check_venv(order, self._environment, self._group.place)
            if order.container is not None:
                check_container(order, order.container)
        except (UnfitEnvironmentError, MountError) as fault:
            raise MissingProgramError(str(fault), lacks_of(fault)) from fault
        asked = {
            "working folder": order.container is None,
            "script": order.is_torchrun and order.container is None,
            "virtual environment": order.venv is not None,
            "container engine and mounts": order.container is not None,
            "secrets": bool(order.secrets.names),
        }
        return [what for what, is_asked in asked.items() if is_asked]

    def _require_script(self) -> None:
        order = self._order
        if not self._script.is_file():
            raise MissingProgramError(f"the script {self._script} does not exist")
        if not order.user.may(self._script, os.R_OK):
            raise MissingProgramError(f"the script {self._script} is closed to the job's user {order.user.uid}")

    def _require_interpreter(self) -> None:
        python = self._order.python
        if shutil.which(python, path=self._environment["PATH"]) is None:
            raise MissingProgramError(f"the interpreter {python} does not exist, or may not be run", PYTHON)

    @property
    def _script(self) -> Path:
        return self._order.working_dir / str(self._order.script)

    def start(self) -> None:
        """Start the prepared program. Raises as ``prepare`` does."""
        try:
            if self._order.is_torchrun:
                self._start_torchrun(self._environment)
            else:
                self._start_command(self._environment)
        except MountError as fault:
            raise MissingProgramError(str(fault), lacks_of(fault)) from fault

    def _prepare_folders(self, scratch: Path) -> None:
        """Make folders: ours to pass through, the program's own to write in; its output and the records are for us
        alone.
        """
        user = self._order.user
        user.take(self._folder)
        (self._folder / files.LOGS).mkdir(mode=0o700, exist_ok=True)
        for place in (scratch, *(self._folder / name for name in (files.RANKS, files.FLIGHT))):
            user.make_folder(place)
        if self._order.outputs is not None:
            user.make_folder(Path(self._order.outputs["folder"]))
        if user.uid is None:
            return
        self._folder.chmod(REACHES)
        user.require_reach(self._folder / files.RANKS, sys.executable)
        if self._order.checkpoints is not None:
            user.make_checkpoints_folder(self._order.checkpoints)
        if self._order.working_dir == self._folder:
            self._order.working_dir = scratch
        if self._order.container is None and not user.may(self._order.working_dir, os.X_OK):
            words = f"the working directory {self._order.working_dir} is closed to the job's user {user.uid}"
            raise MissingProgramError(words, WORKING_FOLDER)

    def _give_secrets(self) -> dict[str, str]:
        try:
            return self._order.secrets.give(self._folder, self._order.user)
        except MissingSecretError as fault:
            raise MissingProgramError(str(fault), fault.lacks) from fault

    def _start_command(self, environment: dict[str, str]) -> None:
        order = self._order
        rank = str(order.local_ranks[0])
        environment["TORCHELASTIC_ERROR_FILE"] = error_file = str(self._folder / files.RANKS / f"{rank}.error.json")
        output = self._pipe(rank)
        try:
            self.pid = self._start(order.command, environment, order.working_dir, output)
        except children.StartError as fault:
            if order.container is not None:  # then it is the engine that is missing, and the host's fault
                raise
            raise MissingProgramError(str(fault)) from fault
        finally:
            os.close(output)
        identity = {"pid": self.pid, "exec_at_unix_ns": time.time_ns(), "error_file": error_file}
        with order.user.acting():  # it is the program's folder, and the program runs by now
            files.write_json(self._folder / files.RANKS / f"{rank}.json", identity)

    def _start_torchrun(self, environment: dict[str, str]) -> None:
        order = self._order
        launch, pipes = self._folder / files.LAUNCH, self._folder / files.PIPES
        order.user.make_folder(launch)
        pipes.mkdir(mode=0o700, exist_ok=True)
        for rank in order.local_ranks:
            self._open_fifo(pipes / str(rank))
        order.user.own(pipes)
        # Counts only when a rank fails by itself; during a stop ``rank_entry`` keeps torchrun out of it.
        environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(-(-order.grace_ns // files.NS_PER_S))
        output = self._pipe(_LAUNCHER)
        args = children.torchrun_args(
            num_nodes=order.num_nodes,
            node_rank=order.node_rank,
            ranks_per_node=order.ranks_per_node,
            host=order.rendezvous_host,
            port=order.rendezvous_port,
            log_dir=launch,
            rank_command=[
                *(self._entry_python, "-I", "-S", str(_RANK_ENTRY), str(self._folder), str(os.getpid())),
                *(str(order.working_dir), order.python, "-u", str(self._script), *order.args),
            ],
        )
        try:
            if self._advice is not None:
                os.write(output, f"muster: {self._advice}\n".encode())
            how = (environment, str(launch), output, self._group.place, order.user)
            if self._standby is not None and self._standby.run(args, *how):
                self.pid = self._standby.pid
            else:
                self.pid = self._start(children.torchrun_command(order.python, args), environment, launch, output)
        finally:
            os.close(output)

    @property
    def _entry_python(self) -> str:
        """Our interpreter, or in a container, which lacks it, the one that runs torchrun: the entry needs only a Python
        3.
        """
        return sys.executable if self._order.container is None else self._order.python

    def _start(self, command: list[str], environment: dict[str, str], working_dir: Path, output: int) -> int:
        """Return the pid of the process: the program itself, or its container's engine. Raises StartError and
        MountError.
        """
        how = (output, self._group.place)
        if self._order.container is None:
            return children.start(command, environment, str(working_dir), *how, self._order.user)
        contained = command_of(self._order, self._folder, environment, command)
        files.note_event(self._folder, "container", command=contained.command)
        if self._order.limits.has_io and container_end.has_own_group(self._order):
            self._group.note("limits of I/O are not in force in a container of podman or docker")
        return children.start(contained.command, contained.environment, "/", *how, contained.user)

    def _pipe(self, name: str) -> int:
        """Add a stream of that name and return the end to write to."""
        reads, writes = os.pipe2(os.O_CLOEXEC)
        self._add_stream(name, reads)
        return writes

    def _open_fifo(self, path: Path) -> None:
        """Open a FIFO that ranks open by name. We hold a write end too: a FIFO without writers would report its end
        without end.
        """
        os.mkfifo(path, 0o600)
        reads = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._kept_open.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        self._order.user.own(path)
        self._add_stream(path.name, reads)

    def _add_stream(self, name: str, reads: int) -> None:
        os.set_blocking(reads, False)
        widen_pipe(reads)
        self.streams[name] = LogStream(
            self._folder / files.LOGS, name, reads, self._order.log_limit_bytes, self._redactor
        )

    def reap(self) -> None:
        self.reaped.update(reap_children())

    def terminate(self) -> None:
        """Send SIGTERM to each rank once: to its pid alone, so its helpers live while it checkpoints.

        It is called repeatedly during a stop, for ranks that start late. torchrun gets the signal only while it has
        started no rank: later it ends when they end, and it would kill their whole groups. The same holds for a command
        that has started a process which reads our stop message: a shell would end at once, mpirun kill its ranks soon.
        """
        if not self._order.is_torchrun:
            if not self._is_in_contact():
                self._signal_once(self.pid, os.getpid())
            return
        user, ranks = self._order.user, self._folder / files.RANKS
        started = [said for rank in self._order.local_ranks if (said := user.read_json(ranks / f"{rank}.json"))]
        for rank in started:
            self._signal_once(rank.get("pid"), rank.get("entry_pid"))
        if not started:
            self._signal_once(self.pid, os.getpid())

    def _is_in_contact(self) -> bool:
        """Return whether a child of the command reads our stop message, instead of the command itself, and has not
        ended yet.

        A process is identified by number and start: numbers are used again, and an unreaped process has ended.
        """
        heard = set() if self.train_socket is None else self.train_socket.listeners - {self.pid}
        for pid in heard.difference(self._listeners):
            if (found := read_process(pid)) is not None:
                self._listeners[pid] = found.start_ticks
        return any(is_same_process(pid, start_ticks) for pid, start_ticks in self._listeners.items())

    def _signal_once(self, pid: object, parent_pid: object) -> None:
        """Signal a process only if it still is the child that it was: numbers are used again.

        It is done with the user's own rights, since a program may write numbers of its own in place of a rank's.
        """
        if not isinstance(pid, int) or pid <= 0 or pid in self._terminated:
            return
        process = read_process(pid)
        if process is None or process.ppid != parent_pid:
            return
        self._terminated.add(pid)
        uid = self._order.user.uid
        if uid is None or pid == self.pid or pid in processes_of(uid, (pid,)):  # an engine's client runs as we do
            os.kill(pid, signal.SIGTERM)

    def excerpt(self, stream: str) -> str:
        return self.streams[stream].excerpt()

    def why_not_started(self) -> tuple[str, str, str | None] | None:
        """Return why a container's engine ended without having run the program, whose fault it is, and what is
        missing.
        """
        main = _LAUNCHER if self._order.is_torchrun else str(self._order.local_ranks[0])
        return container_end.why_not_started(self._order, self._folder, self.exit_code, self.excerpt(main))

    def drain(self) -> dict[str, int]:
        """Read what the ended program left in its pipes, close all, and return how much of each stream was dropped."""
        for stream in self.streams.values():
            stream.drain()
            stream.close()
        for descriptor in self._kept_open:
            os.close(descriptor)
        for ranks in (self.train_socket, self.watch_socket):
            if ranks is not None:
                ranks.close()
        return {name: stream.dropped_bytes for name, stream in self.streams.items() if stream.dropped_bytes}


def widen_pipe(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        return  # the host's limit for this user; a smaller pipe only costs speed
