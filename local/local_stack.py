"""A local stack: what it is asked to be, and what it is once it runs."""

from dataclasses import dataclass
from pathlib import Path

from local.bootstrap import LocalIdentities
from local.children import Child
from local.hosts import LocalHost
from local.restarts import Keeper, Server
from muster.domain.policy.document import Policy


@dataclass(frozen=True, slots=True)
class StackPlan:
    """What to start, and where. ``policy_name``: where the policy was read, to be said."""

    state_dir: Path
    port: int
    hosts: tuple[LocalHost, ...]
    policy: Policy
    policy_name: str

    @property
    def faults(self) -> Path:
        """What `muster sim inject` writes and the simulated GPUs' driver reads."""
        return self.state_dir / "faults.json"


@dataclass(frozen=True, slots=True)
class LocalStack:
    """A running stack. ``cli.json`` holds where it is reached too, so that the CLI finds it."""

    api_url: str
    identities: LocalIdentities
    plan: StackPlan
    servers: dict[str, Server]
    children: tuple[Child, ...]
    keeper: Keeper
