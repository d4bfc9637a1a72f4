"""The hosts of a local stack: each has a real agent and host worker; only the driver beneath its probe is simulated."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import join_tokens
from local.children import Child, child_environment
from muster.domain.principals import Principal
from muster.durable import write_durably
from muster.wire.enrolment import AGENT_FOLDER, NODE_FILE

MODELS: Final = ("h100", "a100", "h200")
ADDRESS: Final = "127.0.0.1"
_PASSED_ON: Final = (
    *("MUSTER_JOB_PYTHON", "MUSTER_PACKAGE_INDEX", "MUSTER_WHEELHOUSE", "MUSTER_PACKAGE_INDEX_CA"),
    *("MUSTER_PACKAGE_INDEX_HOSTS", "MUSTER_SOURCE_BUILDS"),
)
_JOIN_TOKEN: Final = "join.token"  # noqa: S105  # a file's name


@dataclass(frozen=True, slots=True)
class LocalHost:
    """One host.

    ``model``: of the simulated GPUs; None: this machine's own, by NVML. ``seed`` makes their UUIDs differ.
    """

    name: str
    model: str | None
    num_gpus: int
    rack: str
    seed: int
    folder: Path

    @property
    def has_enrolled(self) -> bool:
        return (self.folder / AGENT_FOLDER / NODE_FILE).exists()


def simulated_hosts(models: Sequence[str], num_gpus: int, folder: Path) -> list[LocalHost]:
    """Return one host for each of ``models``; hosts of one model stand in one rack."""
    racks = {model: f"rack-{number}" for number, model in enumerate(dict.fromkeys(models), start=1)}
    numbers: Counter[str] = Counter()
    hosts = []
    for seed, model in enumerate(models):
        numbers[model] += 1
        name = f"{model}-{numbers[model]}"
        hosts.append(LocalHost(name, model, num_gpus, racks[model], seed, folder / name))
    return hosts


def real_host(name: str, folder: Path) -> LocalHost:
    """Return this machine, with the GPUs that its driver lists."""
    return LocalHost(name, None, 0, "rack-1", 0, folder / name)


def write_join_tokens(units: UnitOfWorkFactory, operator: Principal, hosts: Sequence[LocalHost]) -> None:
    """Write a fresh token for each host that has not enrolled, mode 0600, in its folder: valid once, for minutes."""
    for host in hosts:
        host.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if host.has_enrolled:
            continue
        with units.begin(operator, join_tokens.CREATE) as unit:
            made = join_tokens.create(unit, host_name=host.name, address=ADDRESS, rack=host.rack)
        write_durably(host.folder / _JOIN_TOKEN, made.token.text.encode("ascii") + b"\n")


def checkpoints_in(state_dir: Path) -> Path:
    """Return the folder of checkpoints that all hosts of a stack share, as on a cloud's shared file system."""
    return state_dir / "checkpoints"


def host_children(host: LocalHost, *, api_url: str, broker_url: str, faults: Path, state_dir: Path) -> list[Child]:
    """Return agent and host worker.

    Some variables of this process are passed on: the interpreter of jobs, since torch may be installed for another one
    than ours, and where the packages of their environments come from.
    """
    variables = child_environment(
        api_url=api_url,
        broker_url=broker_url,
        state_dir=host.folder,
        checkpoints_dir=checkpoints_in(state_dir),
    )
    variables |= {name: given for name in _PASSED_ON if (given := os.environ.get(name))}
    logs = state_dir / "logs"
    agent = ["agent", "run", "--join-token-file", str(host.folder / _JOIN_TOKEN), "--host-name", host.name]
    if host.model is not None:
        agent += ["--simulated", host.model, "--gpus", str(host.num_gpus), "--seed", str(host.seed)]
        agent += ["--faults", str(faults)]
    return [
        Child(f"agent {host.name}", agent, variables, logs / f"agent-{host.name}.log"),
        Child(f"worker-host {host.name}", ["worker", "host"], variables, logs / f"worker-host-{host.name}.log"),
    ]
