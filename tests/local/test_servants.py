"""The content store of a local stack: its own by default, and another one where the environment names it."""

from pathlib import Path

import pytest

from local.children import Child
from local.local_stack import StackPlan
from local.servants import LocalStore, embedded_store, given_store, server_children
from muster.domain.policy.document import Policy
from muster.settings import load_settings
from muster.store.objects import ObjectStore


def children(folder: Path, store: LocalStore) -> dict[str, Child]:
    plan = StackPlan(state_dir=folder, port=1, hosts=(), policy=Policy(), policy_name="")
    made = server_children(plan, 1, store, database_url="postgresql:///x", broker_url="redis://x")
    return {child.name: child for child in made}


def settings_of(child: Child) -> dict[str, str]:
    return {name: value for name, value in child.variables.items() if name.startswith("MUSTER_")}


def test_the_stack_runs_a_store_of_its_own_whose_key_stays(tmp_path: Path) -> None:
    store = embedded_store(tmp_path, 8421)
    key = (tmp_path / "store.key").read_text()
    assert embedded_store(tmp_path, 8421) == store
    assert (tmp_path / "store.key").read_text() == key
    made = children(tmp_path, store)
    assert list(made) == ["api", "scheduler", "worker-control", "store"]
    own = load_settings(settings_of(made["store"]))
    assert (own.store_dir, own.store_port, own.database_url) == (tmp_path / "store", 8421, None)
    for name in ("api", "worker-control"):
        settings = load_settings(settings_of(made[name]))
        assert settings.store_url == "http://127.0.0.1:8421"
        assert ObjectStore.from_settings(settings) is not None


def test_a_store_that_the_environment_names_is_used_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given_store() is None
    monkeypatch.setenv("MUSTER_STORE_URL", "https://s3.example")
    monkeypatch.setenv("MUSTER_STORE_BUCKET", "ours")
    store = given_store()
    assert store is not None
    made = children(tmp_path, store)
    assert list(made) == ["api", "scheduler", "worker-control"]
    settings = load_settings(settings_of(made["api"]))
    assert (settings.store_url, settings.store_bucket) == ("https://s3.example", "ours")
