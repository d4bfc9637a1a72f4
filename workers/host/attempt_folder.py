"""One attempt's folder on this host: order, lease, stop and records, shared with its supervisor by files."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.domain.ids import AttemptId
from muster.durable import sync_folder, write_durably
from muster.wire.host import Order
from workers.host.bundle_order import BundlesHost, bundle_of
from workers.host.output_order import outputs_of

FORGOTTEN: Final = "forgotten.json"
_NS_PER_MS: Final = 1_000_000


def boottime_ms() -> int:
    """Return the milliseconds of the clock that counts suspended time too; leases use it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NS_PER_MS


@dataclass(frozen=True, slots=True)
class OrderHost:
    """The host's part of an order. ``secrets_dir``: holds a folder for each tenant. ``variables``: for its programs.

    ``bundles``: None where the host has none, as on one machine without a control plane.
    """

    boot_id: str
    node_id: str
    python: str
    secrets_dir: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    bundles: BundlesHost | None = None


class AttemptFolder:
    """Folder of one attempt. ``checkpoints``: for jobs that name no folder; shared with every host that may continue
    them.
    """

    def __init__(self, state_dir: Path, attempt_id: AttemptId, checkpoints: Path | None = None) -> None:
        self.path = state_dir / "attempts" / attempt_id
        self._checkpoints = checkpoints or state_dir / "checkpoints"
        self.attempt_id = attempt_id

    def write_order(
        self,
        order: Order,
        at: OrderHost,
        *,
        lease_until_ms: int,
        port: int,
        user: dict[str, Any] | None = None,
    ) -> None:
        """Write all that the supervisor needs. It is written before the ledger states CLAIMED, so a claimed attempt has
        its order.

        ``user``: the user that its programs run as (``job_users``); None: our own.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync_folder(self.path.parent)
        document = {
            **_program_of(order, at.python),
            "working_dir": order.working_dir or str(self.path),
            **bundle_of(order, at.bundles, self.path, user or {}, at.python),
            **outputs_of(order, at.bundles, self.path),
            "schema": 1,
            "boot_id": at.boot_id,
            "node_id": at.node_id,
            "user": user or {},
            "secrets": {
                "names": order.secrets,
                "source": _secrets_of(at.secrets_dir, order.tenant),
                "sealed": order.sealed_secrets,
                "variables": order.secret_variables,
            },
            "rendezvous": {"host": order.rendezvous.host, "port": port},
            "lease": {"boottime_ns": lease_until_ms * _NS_PER_MS},
            **self._checkpoints_of(order, at.variables),
        }
        self._write("order.json", document)

    def _checkpoints_of(self, order: Order, variables: Mapping[str, str]) -> dict[str, Any]:
        """Return the job's own folder, and the environment that names it unless the order names another."""
        own = str(self._checkpoints / order.job_id)
        is_named = "MUSTER_CHECKPOINT_DIR" in order.env
        return {
            "checkpoints": None if is_named else own,
            "env": {"MUSTER_CHECKPOINT_DIR": own, **variables, **order.env},
        }

    def write_lease(self, lease_until_ms: int) -> None:
        self._write("lease.json", {"boottime_ns": lease_until_ms * _NS_PER_MS})

    def write_stop(self, reason: str, kill_at_ms: int) -> None:
        document = {"reason": reason, "grace_until_boottime_ns": kill_at_ms * _NS_PER_MS, "terminate": True}
        self._write("stop.json", document)

    def write_go(self) -> None:
        """Let the program start: all hosts are ready."""
        if not self.has_go():
            self._write("go.json", {})

    def write_pairwise_order(self, document: dict[str, Any]) -> None:
        """Write an all-gather for the supervisor: a ``PairwiseOrder``, or a round and ``is_called_off``."""
        self._write("meet.json", document)

    def write_killed(self, at_ms: int) -> None:
        """Record that a preflight did not end in its time. ``at_ms``: of the boot-time clock."""
        self._write("killed.json", {"boottime_ms": at_ms})

    def has_go(self) -> bool:
        return (self.path / "go.json").exists()

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a record of the supervisor, or None while there is none."""
        try:
            document = msgspec.json.decode((self.path / name).read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return document if isinstance(document, dict) else None

    def mark_forgotten(self) -> None:
        """Mark the attempt as not needed by the server; the relay removes it after its logs are delivered."""
        self._write(FORGOTTEN, {})

    def _write(self, name: str, document: dict[str, Any]) -> None:
        write_durably(self.path / name, msgspec.json.encode(document))


def _preparation_of(order: Order, python: str) -> dict[str, Any] | None:
    """Return the preparation for the supervisor. ``python``: the host's own, which computes for the quick check."""
    if order.preparation is None:
        return None
    preparation = order.preparation
    return {
        "disk_free_bytes": preparation.disk_free_bytes,
        "quick_check_s": preparation.quick_check_s,
        "python": python,
        "is_simulated": preparation.is_simulated,
        "only_look": preparation.is_preflight_only,
        "meets": preparation.has_pairwise_check,
    }


def _secrets_of(secrets_dir: Path | None, tenant: str | None) -> str | None:
    """Return the host's folder of the tenant's secrets, or None."""
    return None if secrets_dir is None or tenant is None or "/" in tenant else str(secrets_dir / tenant)


def _program_of(order: Order, python: str) -> dict[str, Any]:
    """Return the order's own content in the supervisor's terms."""
    return {
        "attempt_id": order.attempt_id,
        "fence": order.fence,
        "job_id": order.job_id,
        "node_rank": order.node_rank,
        "num_nodes": order.num_nodes,
        "ranks_per_node": order.ranks_per_node,
        "gpus": order.gpus,
        "launcher": order.launcher,
        "script": order.script,
        "args": order.args,
        "command": order.argv or None,
        "python": order.python or (None if order.container else python),
        "venv": order.venv,
        "container": order.container,
        "wall_time_s": order.wall_time_s,
        "grace_s": order.grace_s,
        "kill_grace_s": order.kill_grace_s,
        "log_limit_bytes_per_stream": order.log_limit_bytes_per_stream,
        "limits": order.limits,
        "datasets": order.datasets,
        "dataset_look_s": order.dataset_check_s,
        "preparation": _preparation_of(order, python),
        "watch": order.watch,
        "durations": order.durations,
    }
