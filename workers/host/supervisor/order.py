"""The order of what to run, as the launcher wrote it before the start."""

from __future__ import annotations

import os
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.order_parts import Container, HostLimits, Preparation
from workers.host.supervisor.user.job_secrets import JobSecrets
from workers.host.supervisor.user.job_user import JobUser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PASSED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "USER",
    "LOGNAME",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
)
_PASSED_ON_PREFIX = "NCCL_"


_OF_A_DATASET = ("name", "path", "manifest", "verify")
IMAGE_PYTHON = "python3"
"""Interpreter in a container, if the job names none."""
_OF_THE_HOST = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "CUDA_HOME"})
"""Variables without a meaning in a container, whose image has its own."""


class OrderError(Exception):
    """The order cannot be carried out by this supervisor: our side's fault, never the program's."""


class Order:
    """One host's part of an attempt. Ranks are global numbers.

    ``local_ranks``: the ranks that the supervisor starts and whose end it records; a bare command is one of them.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        try:
            self._read(document)
        except (KeyError, TypeError, ValueError) as fault:
            raise OrderError(f"{files.ORDER}: {type(fault).__name__}: {fault}") from fault

    def _read(self, document: dict[str, Any]) -> None:
        self.attempt_id = str(document["attempt_id"])
        self.fence = int(document["fence"])
        self.job_id = str(document["job_id"])
        self.boot_id = str(document["boot_id"])
        self.node_id = str(document["node_id"])
        self.node_rank = int(document["node_rank"])
        self.num_nodes = int(document["num_nodes"])
        self.ranks_per_node = int(document["ranks_per_node"])
        self.gpus: list[str] = [str(gpu) for gpu in document["gpus"]]
        self.is_torchrun = {"torchrun": True, "command": False}[document["launcher"]]
        self.script: str | None = document["script"]
        self.args: list[str] = [str(argument) for argument in document["args"]]
        self.command: list[str] = [str(argument) for argument in document["command"] or ()]
        self.venv: str | None = document.get("venv")  # an older launcher knows neither of these
        container = document.get("container")
        self.container = None if container is None else Container(**container)
        self.python = str(document["python"] or IMAGE_PYTHON)
        if self.venv is not None:
            self.use_venv(self.venv)
        self.working_dir = Path(document["working_dir"])
        self.env = {str(name): str(value) for name, value in document["env"].items()}
        self.rendezvous_host = str(document["rendezvous"]["host"])
        self.rendezvous_port = int(document["rendezvous"]["port"])
        wall_time_s = document["wall_time_s"]
        self.wall_time_ns = None if wall_time_s is None else round(wall_time_s * files.NS_PER_S)
        self.grace_ns = round(document["grace_s"] * files.NS_PER_S)
        # Past its lease a program may not outlast what the server's longer lease allows for (I13).
        self.fence_grace_ns = round(min(document["grace_s"], document.get("kill_grace_s", 0.0)) * files.NS_PER_S)
        self.log_limit_bytes = int(document["log_limit_bytes_per_stream"])
        self.limits = HostLimits(**document.get("limits", {}))  # an older launcher says nothing of them
        self.secrets = JobSecrets.read(document.get("secrets", {}))
        self.user = JobUser.read(document.get("user", {}))
        self.datasets = [{name: dataset[name] for name in _OF_A_DATASET} for dataset in document.get("datasets") or ()]
        self.dataset_check_s = float(document.get("dataset_look_s", 0.0))
        self.bundle: dict[str, Any] | None = document.get("bundle")
        """What ``workers.host.content`` needs to make the work folder, which is ``folder``."""
        self.has_environment = bool((self.bundle or {}).get("environment"))
        """Whether an environment comes with the bundle. Its path, ``venv``, is known once it is here."""
        self.outputs: dict[str, Any] | None = document.get("outputs")
        """Its ``folder`` is for what the launcher collects, and ``seen_at`` is the program's path of it."""
        checkpoints = document.get("checkpoints")
        self.checkpoints = None if checkpoints is None else Path(checkpoints)
        """The job's folder in the host's own for them; None where the job names another, which is not ours to make."""
        preparation = document.get("preparation")
        self.preparation = None if preparation is None else Preparation.read(preparation)
        self.lease_until_ns = int(document["lease"]["boottime_ns"])
        if self.is_torchrun and not self.script:
            raise ValueError("torchrun needs a script")
        if not self.is_torchrun and not self.command:
            raise ValueError("command is empty")

    def use_venv(self, venv: str) -> None:
        """Run the program by a virtual environment's interpreter."""
        self.venv = venv
        self.python = f"{venv}/bin/python"

    @property
    def host_ranks(self) -> range:
        """All ranks of this host, started by any process: a bare command may be a launcher itself."""
        first = self.node_rank * self.ranks_per_node
        return range(first, first + self.ranks_per_node)

    @property
    def local_ranks(self) -> list[int]:
        return list(self.host_ranks) if self.is_torchrun else [self.host_ranks.start]

    @property
    def marks(self) -> tuple[str, str]:
        """Variables that every process of this part carries in its environment.

        The node is one of them because simulated hosts of one attempt may share a machine, and each must clean up after
        itself alone.
        """
        return (f"MUSTER_ATTEMPT_ID={self.attempt_id}", f"MUSTER_NODE_ID={self.node_id}")


def read_order(folder: Path) -> Order:
    """Return the order. Raises OrderError if there is none, or none that fits."""
    document = files.read_json(folder / files.ORDER)
    if document is None:
        raise OrderError(f"{files.ORDER} is missing or not a JSON object")
    order = Order(document)
    order.secrets.folder = folder
    order.user.is_taken = (folder / files.USER).exists()
    return order


def passed_on_environment() -> dict[str, str]:
    """Return the host's variables that a program may see: an allow-list, since the launcher's own hold its
    credentials.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_VARIABLES or name.startswith(_PASSED_ON_PREFIX)
    }


def program_environment(order: Order, folder: Path, scratch: Path) -> dict[str, str]:
    """Return a program's environment. The first ones are defaults: the host's override them, and the tenant's override
    all.

    NCCL prints nothing of its faults by itself, and torch keeps no record of its collectives: both are switched on.
    NCCL writes its record of a hang when it is requested by its pipe. Torch ends a process that cannot make its pipe,
    and a bare command may start its ranks where this folder is missing: ``muster.train`` checks that, and offers it.
    """
    record = str(folder / files.FLIGHT / "rank_")
    environment = {
        "PATH": os.defpath,
        "OMP_NUM_THREADS": "1",
        "NCCL_DEBUG": "WARN",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": record,
        **({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": record} if order.is_torchrun else {}),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        **passed_on_environment(),
        **order.user.environment(scratch),
        **launcher_contract(order),
        **order.env,
        "MUSTER_ATTEMPT_ID": order.attempt_id,
        "MUSTER_JOB_ID": order.job_id,
        "MUSTER_FENCE": str(order.fence),
        "MUSTER_NODE_ID": order.node_id,
        "MUSTER_NODE_RANK": str(order.node_rank),
        "MUSTER_NUM_NODES": str(order.num_nodes),
        "CUDA_VISIBLE_DEVICES": ",".join(order.gpus),
        "MUSTER_TRAIN_SOCKET": str(scratch / files.TRAIN_SOCKET),
        "MUSTER_WATCH_SOCKET": str(scratch / files.WATCH_SOCKET),
        "MUSTER_TAKES_OUTCOME": "1",
        **_of_bundle(order),
        **({} if order.outputs is None else {"MUSTER_OUTPUT_DIR": str(order.outputs["seen_at"])}),
        "TMPDIR": str(scratch),
    }
    if order.venv is not None:
        environment |= {"VIRTUAL_ENV": order.venv, "PATH": f"{order.venv}/bin:{environment['PATH']}"}
    if order.container is not None:
        hidden = _OF_THE_HOST - order.env.keys() - order.user.environment(scratch).keys()
        environment = {name: value for name, value in environment.items() if name not in hidden}
    return environment


def _of_bundle(order: Order) -> dict[str, str]:
    """Return the bundle's digest, and its folder as the program sees it."""
    if order.bundle is None:
        return {}
    return {"MUSTER_BUNDLE": str(order.bundle["digest"]), "MUSTER_BUNDLE_DIR": str(order.bundle["seen_at"])}


def launcher_contract(order: Order) -> dict[str, str]:
    """Return the variables by which the ranks of all hosts meet, and for a bare command also torchrun's own.

    A command that is a host's only rank gets its rank; one that starts several sets theirs itself.
    """
    contract = {"MASTER_ADDR": order.rendezvous_host, "MASTER_PORT": str(order.rendezvous_port)}
    if order.is_torchrun:
        return contract
    contract |= {
        "NNODES": str(order.num_nodes),
        "NODE_RANK": str(order.node_rank),
        "NPROC_PER_NODE": str(order.ranks_per_node),
        "LOCAL_WORLD_SIZE": str(order.ranks_per_node),
        "WORLD_SIZE": str(order.num_nodes * order.ranks_per_node),
    }
    if order.ranks_per_node == 1:
        contract |= {"RANK": str(order.node_rank), "LOCAL_RANK": "0"}
    return contract
