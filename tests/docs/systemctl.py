"""`systemctl`, as far as a document needs it, where systemd does not run: unit files become processes.

    python systemctl.py FOLDER daemon-reload | enable --now UNIT… | start UNIT… | stop UNIT… | restart UNIT…

``FOLDER`` holds ``units`` (unit files with their drop-ins, already with this machine's places in them), ``run`` (pids)
and ``log``. Of a unit this takes ExecStart, Environment and KillMode, and nothing that needs a kernel's help: standard
library alone, since it is a program of its own.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 60.0


@dataclass
class Unit:
    """Assignments of [Service]; an empty one forgets those before it, as systemd has it."""

    name: str
    settings: dict[str, list[str]] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        section = ""
        for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line and not line.startswith("#"):
                name, _, value = line.partition("=")
                values = self.settings.setdefault(name.strip(), [])
                values.append(value.strip()) if value.strip() else values.clear()

    def last(self, name: str) -> str | None:
        values = self.settings.get(name)
        return values[-1] if values else None


def read_unit(units: Path, name: str) -> Unit:
    """Raises FileNotFoundError: there is no such unit."""
    unit = Unit(name)
    file = f"{name}.service"
    unit.read(units / file)
    for drop_in in sorted((units / f"{file}.d").glob("*.conf")):
        unit.read(drop_in)
    return unit


def start(folder: Path, name: str) -> None:
    if _living(folder, name) is not None:
        return
    unit = read_unit(folder / "units", name)
    command = shlex.split(unit.last("ExecStart") or "")
    given = dict(word.split("=", 1) for line in unit.settings.get("Environment", []) for word in shlex.split(line))
    with (folder / "log" / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env={"PATH": os.environ["PATH"], **given},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (folder / "run" / name).write_text(str(process.pid))


def stop(folder: Path, name: str) -> None:
    """SIGTERM to the group, or by KillMode=process to the one process; SIGKILL to the same after a while."""
    pid = _living(folder, name)
    if pid is None:
        return
    is_alone = read_unit(folder / "units", name).last("KillMode") == "process"
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number) if is_alone else os.killpg(pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + PATIENCE_S
        while _living(folder, name) is not None and time.monotonic() < deadline:
            time.sleep(0.05)
    (folder / "run" / name).unlink()


def _living(folder: Path, name: str) -> int | None:
    """Its pid. A zombie counts as ended: its parent has ended, and the first process reaps it."""
    try:
        pid = int((folder / "run" / name).read_text())
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else pid


def main(arguments: list[str]) -> int:
    folder, verb, *rest = arguments
    names = [word.removesuffix(".service") for word in rest if not word.startswith("-")]
    for name in names:
        if verb in {"stop", "restart"}:
            stop(Path(folder), name)
        if verb in {"start", "restart"} or (verb == "enable" and "--now" in rest):
            start(Path(folder), name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
