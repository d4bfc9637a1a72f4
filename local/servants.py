"""The processes of the stack's control plane, and its content store: our own, or one that the environment names."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local.children import Child, child_environment
from local.hosts import checkpoints_in
from local.local_stack import StackPlan
from muster.settings import PREFIX
from muster.store.key_file import make_key_file

STORE_URL: Final = "store.url"
"""File of a state folder, while the stack is up: the address of its content store, for `muster doctor`."""
STORE_KEY: Final = "store.key"
SECRET_KEYS: Final = "secrets.key"  # noqa: S105  # a file's name
"""File of the keys of tenants' secrets; its name ends as other secret files' do, which no support bundle shows."""
_GIVEN: Final = f"{PREFIX}STORE_"


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The stack's content store. ``variables``: what its users need. ``port`` None: it is another's."""

    url: str
    variables: dict[str, str]
    port: int | None


def given_store() -> LocalStore | None:
    """Return the store that the environment names by MUSTER_STORE_URL; None if it names none."""
    url = os.environ.get(f"{_GIVEN}URL")
    if not url:
        return None
    return LocalStore(url, {name: value for name, value in os.environ.items() if name.startswith(_GIVEN)}, None)


def embedded_store(state_dir: Path, port: int) -> LocalStore:
    """Return the store that this stack runs itself, with its key file made."""
    key_file, url = state_dir / STORE_KEY, f"http://127.0.0.1:{port}"
    make_key_file(key_file)
    variables = {
        f"{_GIVEN}URL": url,
        f"{_GIVEN}GATEWAY_URL": url,
        f"{_GIVEN}KEY_FILE": str(key_file),
        f"{_GIVEN}CHECKPOINT_DIRS": str(checkpoints_in(state_dir).absolute()),
    }
    return LocalStore(url, variables, port)


def server_children(
    plan: StackPlan, port: int, store: LocalStore, *, database_url: str, broker_url: str
) -> list[Child]:
    """Return the API first, then the others."""
    variables = child_environment(
        database_url=database_url,
        broker_url=broker_url,
        secret_key_file=plan.state_dir / "secret.key",
        api_port=port,
        state_dir=plan.state_dir,
    )
    variables |= store.variables
    # API and control worker open secrets and the receivers of routes; no other process does.
    keys = child_environment(secret_keys_file=plan.state_dir / SECRET_KEYS)
    logs = plan.state_dir / "logs"
    servants = [
        Child("api", ["api"], {**variables, **keys}, logs / "api.log"),
        Child("scheduler", ["scheduler"], variables, logs / "scheduler.log"),
        Child("worker-control", ["worker", "control"], {**variables, **keys}, logs / "worker-control.log"),
    ]
    if store.port is not None:
        own = child_environment(
            store_key_file=plan.state_dir / STORE_KEY,
            store_dir=plan.state_dir / "store",
            store_port=store.port,
            store_checkpoint_dirs=checkpoints_in(plan.state_dir).absolute(),
        )
        servants.append(Child("store", ["store", "serve"], own, logs / "store.log"))
    return servants
