"""A process that runs the real NvmlProbe on the fake library and answers JSON lines: one command in, one answer out.

It counts which functions pynvml looks up, so that a test can compare them with what the library exports.
"""

import ctypes
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import structlog

from agents import host_facts
from agents.probes import nvml_library
from agents.probes.interface import ProbeError
from agents.probes.nvml import NvmlProbe, open_nvml_probe

NOW_MS = 1_790_000_000_000


@dataclasses.dataclass(slots=True)
class _Clock:
    """The seconds that tests have had pass."""

    passed_s: float = 0.0

    def __call__(self) -> float:
        return self.passed_s


def _load_driver() -> None:
    """Load the library as pynvml will find it: the system's loader read the search path before this process forked."""
    if folder := os.environ["LD_LIBRARY_PATH"]:
        ctypes.CDLL(str(Path(folder) / "libnvidia-ml.so.1"))


def _record_lookups() -> set[str]:
    pynvml = nvml_library.load()
    asked: set[str] = set()
    look_up = pynvml._nvmlGetFunctionPointer

    def recording(name: str) -> Any:
        asked.add(name)
        return look_up(name)

    pynvml._nvmlGetFunctionPointer = recording
    return asked


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(type(value))


def _answer(probe: NvmlProbe, requested: set[str], command: dict[str, Any]) -> object:
    match command["do"]:
        case "identify":
            return dataclasses.asdict(probe.identify())
        case "check":
            return [dataclasses.asdict(found) for found in probe.check(NOW_MS)]
        case "inspect":
            return [dataclasses.asdict(found) for found in probe.inspect(NOW_MS)]
        case "events":
            return [dataclasses.asdict(event) for event in probe.events(command["timeout_s"])]
        case "take_change":
            return probe.take_change()
        case "compute_device":
            return dataclasses.asdict(probe.compute_device(command["gpu"]))
        case "release":
            with probe.released():
                return [dataclasses.asdict(found) for found in probe.check(NOW_MS)]
        case "close":
            probe.close()
            return None
        case "asked":
            return sorted(requested)
    raise ValueError(command)


def main() -> None:
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))  # answers alone go to stdout
    host_facts.sees_every_process = lambda: True  # the stand-in's programs are in no namespace
    _load_driver()
    asked, clock = _record_lookups(), _Clock()
    try:
        probe = open_nvml_probe(deadline_s=float(sys.argv[1]), clock_s=clock)
    except ProbeError as error:
        print(json.dumps({"error": str(error), "suggestion": error.suggestion}), flush=True)  # noqa: T201  # its protocol
        return
    print(json.dumps("open"), flush=True)  # noqa: T201
    for line in sys.stdin:
        command = json.loads(line)
        clock.passed_s += command.pop("pass_s", 0.0)
        try:
            answer = _answer(probe, asked, command)
        except ProbeError as error:
            answer = {"error": str(error), "suggestion": error.suggestion}
        print(json.dumps(answer, default=_plain), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
