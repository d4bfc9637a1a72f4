"""Entry between torchrun and one rank's program, which records the program's end.

    python -I -S rank_entry.py ATTEMPT_FOLDER SUPERVISOR_PID WORKING_DIR PROGRAM [ARGUMENT ...]

It stays as the program's parent rather than becoming the program, for three reasons. Only a parent learns the exit
code or signal for certain: torchrun keeps it to itself and returns 1 for everything. The program gets a process group
of its own, so torchrun's killpg reaches only us and we pass SIGTERM to the rank alone: DataLoader workers live on and
the rank can still checkpoint. And during a stop we exit with 0 for the program, so that torchrun does not cut short the
grace of the other ranks because one has ended.

It is run by path, standard library only, by our interpreter; the program gets its own interpreter, not our paths.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

# -I removes our own paths and the tenant's from the search; the package's root is added last.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from workers.host.supervisor import files
from workers.host.supervisor.children import become
from workers.host.supervisor.kernel import die_with_parent

_PASSED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)


def main(folder: Path, supervisor_pid: int, working_dir: str, program: list[str]) -> int:
    torchrun_pid = os.getppid()
    if torchrun_pid == supervisor_pid:  # torchrun died before this line
        return 1
    die_with_parent(torchrun_pid)
    rank = os.environ["RANK"]
    output = os.open(folder / files.PIPES / rank, os.O_WRONLY | os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_SIGNALS)
    own_pid = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(own_pid)
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_SIGNALS)
        become(program, os.environ, working_dir, output=output, on_failure=_report)
    exec_at_unix_ns = time.time_ns()
    for number in _PASSED_SIGNALS:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_SIGNALS)
    files.write_json(
        folder / files.RANKS / f"{rank}.json",
        {
            "pid": child,
            "entry_pid": own_pid,
            "exec_at_unix_ns": exec_at_unix_ns,
            "error_file": os.environ.get("TORCHELASTIC_ERROR_FILE"),
        },
    )
    # Reaped last: until then its number is its own, so no signal hits another process; and if all are killed before
    # the record is written, the supervisor inherits it unreaped and learns how it ended.
    code = _ended(child)
    ended = {"exit_code": code, "signal": None} if code >= 0 else {"exit_code": None, "signal": -code}
    files.write_json(folder / files.RANKS / f"{rank}.exit.json", {**ended, "ended_at_ms": files.wall_ms()})
    os.waitpid(child, 0)
    if (folder / files.STOPPING).exists():
        return 0
    return code if code >= 0 else 128 - code


def _ended(child: int) -> int:
    """Return the exit code, or minus the signal. The child is not reaped yet, and we pass it no signal any more."""
    end = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    for number in _PASSED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if end is None:
        raise ChildProcessError(f"the end of {child} was waited for, and is not reported")
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _report(fault: OSError) -> None:
    os.write(2, f"cannot start the program: {fault}\n".encode())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
