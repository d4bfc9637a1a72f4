"""World of the tour's steps: the API as operator and tenant, the stack's processes, the driver's faults."""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from agents.probes.faults import Fault, clear_faults, write_fault
from local.children import Child
from local.hosts import LocalHost
from local.tour.output import InterruptedTourError, StepFailedError, Teller
from muster.client.rest import RestClient
from muster.client.transport import Problem, UnreachableError

Found = TypeVar("Found")
Document = Mapping[str, Any]
POLL_S: Final = 0.1
BROKER: Final = "broker"
DATABASE: Final = "database"
LABEL: Final = "tour"
PATIENCE_S: Final = 240.0
TERMINAL: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "HELD"})
EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "train_transformer.py"


class EventLog:
    """The fleet's events as the operator sees them, each read once."""

    def __init__(self, client: RestClient) -> None:
        self._client = client
        self._after = 0
        self._seen: list[Document] = []

    def since(self, moment_s: float) -> list[Document]:
        for event in self._client.events(after=self._after):
            self._after = event["position"]
            self._seen.append(event)
        return [event for event in self._seen if seconds_of(event["at"]) >= moment_s]


@dataclass(frozen=True, slots=True)
class World:
    """Access to the stack. ``taint_margin_s``, and ``min_run_s`` before a job may be reclaimed: by policy.

    ``servers``: database and broker, where they are the stack's own; 0: not running.
    """

    operator: RestClient
    tenant: RestClient
    events: EventLog
    teller: Teller
    state_dir: Path
    faults: Path
    taint_margin_s: float
    min_run_s: float
    hosts: tuple[LocalHost, ...]
    children: dict[str, Child]
    servers: dict[str, Callable[[], int]]
    stop: threading.Event

    def log(self, name: str) -> Path:
        return self.state_dir / "logs" / f"{name}.log"

    def until(
        self,
        expected: str,
        read: Callable[[], Found],
        is_so: Callable[[Found], bool],
        *,
        seen: Callable[[Found], str],
        log: str,
        patience_s: float = PATIENCE_S,
    ) -> Found:
        """Return the result of ``read``, once it is as expected. A control plane that does not answer is asked again.

        Raises:
            StepFailedError: it did not come in time.
            InterruptedTourError: the user asked to stop.
        """
        deadline_s = time.monotonic() + patience_s
        words = "nothing yet"
        with self.teller.waiting(f"waiting: {expected}") as show:
            while time.monotonic() < deadline_s:
                try:
                    found = read()
                except (UnreachableError, Problem) as fault:
                    words = str(fault)
                else:
                    if is_so(found):
                        return found
                    words = seen(found)
                show(words)
                if self.stop.wait(POLL_S):
                    raise InterruptedTourError
        raise StepFailedError(f"{expected} within {patience_s:.0f} s", words, self.log(log))

    def require(self, expected: str, seen: str, log: str, *, is_so: bool) -> None:
        """Print that the expectation held. Raises StepFailedError where it did not."""
        if not is_so:
            raise StepFailedError(expected, seen, self.log(log))
        self.teller.passed(expected, seen)

    def submit(self, client: RestClient, spec: Document) -> Document:
        """Submit under one key until it is answered: a repetition makes no second job."""
        key = f"tour-{spec['name']}-{time.time_ns()}"
        answers: list[Document] = []

        def read() -> list[Document]:
            answers.append(client.submit_job(spec, idempotency_key=key))
            return answers

        return self.until("the job is accepted", read, bool, seen=str, log="api")[-1]

    def wait_for_end(self, job_id: str, name: str, *, patience_s: float = PATIENCE_S) -> Document:
        """Return the job once it has ended well."""
        job = self.until(
            f"{name} ends",
            lambda: self.tenant.job(job_id),
            lambda found: found["state"] in TERMINAL,
            seen=self.progress,
            log="scheduler",
            patience_s=patience_s,
        )
        self.require(
            f"{name} ends SUCCEEDED",
            f"{job['state']}, {job['state_reason']}",
            "scheduler",
            is_so=job["state"] == "SUCCEEDED",
        )
        return job

    def progress(self, job: Document) -> str:
        ranks = self.tenant.ranks(job["id"])
        if not ranks:
            return f"{job['state']}: {job['state_reason']}"
        first = ranks[0]
        loss = "" if first["loss"] is None else f", loss {first['loss']:.3f}"
        return f"{job['state']}: step {first['step']}{loss}"

    def saved(self, job_id: str) -> list[Document]:
        """Return its checkpoints that were committed, whatever their state is now."""
        return [one for one in self.tenant.checkpoints(job_id) if one["committed_at"] is not None]

    def inject(self, gpu: str, xid: int) -> float:
        """Inject a driver's fault, as ``muster sim inject`` does. Return when, in seconds since 1970."""
        write_fault(self.faults, Fault(gpu=gpu, kind="xid", code=xid, is_in_kernel_log=True))
        return time.time()

    def clear_faults(self) -> None:
        clear_faults(self.faults)

    def kill(self, name: str) -> int:
        """Send SIGKILL. Return the pid that died, for ``came_back``."""
        pid = self.until(f"{name} runs", lambda: self.pid(name), bool, seen=str, log=name.replace(" ", "-"))
        os.kill(pid, signal.SIGKILL)
        self.teller.write(f"[bold]kill -9[/] {name} (pid {pid})")
        return pid

    def came_back(self, name: str, died: int) -> None:
        self.until(
            f"{name} is started again",
            lambda: self.pid(name),
            lambda found: found not in {0, died},
            seen=lambda found: f"pid {found}" if found else "it does not run",
            log=name.replace(" ", "-"),
        )

    def runs_again(self, name: str, since_s: float) -> None:
        """Wait until the process says in its log, after ``since_s``, that it has started."""
        log = name.replace(" ", "-")
        self.until(
            f"{name} runs again",
            lambda: last_start_s(self.log(log)),
            lambda found: found > since_s,
            seen=lambda _: "it starts",
            log=log,
        )

    def pid(self, name: str) -> int:
        """Return the pid of one of the stack's processes; 0: it does not run at present."""
        if name in self.servers:
            return self.servers[name]()
        child = self.children[name]
        return (child.pid or 0) if child.is_running() else 0


def last_start_s(log: Path) -> float:
    """Return when a process last logged ``…_started``, in seconds since 1970; 0: never."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    events = (json.loads(line) for line in lines if '_started"' in line and line.endswith("\n"))
    return max((seconds_of(event["timestamp"]) for event in events if event["event"].endswith("_started")), default=0.0)


def has_passed(world: World, steps: Callable[[], None], name: str) -> bool:
    """Run ``steps`` and return whether they came to their end.

    Otherwise it prints what did not hold, or that ``name`` was interrupted.
    """
    try:
        steps()
    except StepFailedError as fault:
        world.teller.failed(fault)
    except (Problem, UnreachableError) as fault:
        world.teller.failed(StepFailedError("the control plane answers", str(fault), world.log("api")))
    except InterruptedTourError:
        world.teller.console.print(f"{name} was interrupted")
    else:
        return True
    return False


def seconds_of(text: str | None) -> float:
    """Return RFC 3339 as seconds since 1970; a time that has not come is infinite."""
    if text is None:
        return math.inf
    return datetime.fromisoformat(text).timestamp()


def log_of(attempt: Document) -> str:
    """Return the log of the host worker that runs its first ranks."""
    return f"worker-host-{attempt['hosts'][0]['node_name']}"


def training(name: str, *, steps: int, nodes: int, gpus_per_node: int, ranks_per_node: int, **more: Any) -> Document:
    """Return the example's transformer as a job; ``more`` goes into the spec."""
    sleep_s = more.pop("step_sleep_s", 0.05)
    every, env = more.pop("checkpoint_every", 10), more.pop("env", {})
    args = ["--steps", str(steps), "--checkpoint-every", str(every), "--step-sleep", str(sleep_s)]
    return {
        "name": name,
        "program": {"script": str(EXAMPLE), "args": args, "env": env},
        "shape": {"nodes": nodes, "gpus_per_node": gpus_per_node, "ranks_per_node": ranks_per_node},
        "topology": {"required": "rack"},
        "labels": {LABEL: "yes"},
        **more,
    }
