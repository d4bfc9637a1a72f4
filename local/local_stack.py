"""A local stack: the plan of it, and the running stack."""

from dataclasses import dataclass
from pathlib import Path

from local.bootstrap import LocalIdentities
from local.children import Child
from local.hosts import LocalHost
from local.restarts import Keeper, Server
from muster.domain.policy.document import Policy


@dataclass(frozen=True, slots=True)
class StackPlan:
    """Plan of a stack: its hosts, its policy and its place. ``policy_name``: the policy's origin, for display.

    ``command``: the words with which the command reaches this stack from the folder where it was started.
    """

    state_dir: Path
    port: int
    hosts: tuple[LocalHost, ...]
    policy: Policy
    policy_name: str
    command: str = ".venv/bin/muster"

    @property
    def faults(self) -> Path:
        """Return the file that `muster sim inject` writes and the simulated GPUs' driver reads."""
        return self.state_dir / "faults.json"


@dataclass(frozen=True, slots=True)
class LocalStack:
    """A running stack. ``cli.json`` holds its address too, so that the CLI finds it."""

    api_url: str
    identities: LocalIdentities
    plan: StackPlan
    servers: dict[str, Server]
    children: tuple[Child, ...]
    keeper: Keeper
