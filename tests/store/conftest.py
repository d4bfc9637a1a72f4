"""One process of each store for all tests of a worker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.stores import OurStore, Store, motos, ours


@pytest.fixture(name="our_own", scope="session")
def fixture_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurStore]:
    with ours(tmp_path_factory.mktemp("ours")) as store:
        yield store


@pytest.fixture(name="motos_own", scope="session")
def fixture_motos_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with motos(tmp_path_factory.mktemp("moto")) as store:
        yield store


@pytest.fixture(name="store", params=["our_own", "motos_own"])
def fixture_store(request: pytest.FixtureRequest) -> Store:
    """Each store in turn: what holds for one must hold for the other."""
    found: Store = request.getfixturevalue(request.param)
    return found


@pytest.fixture(name="own_folder")
def fixture_own_folder(tmp_path: Path) -> Path:
    return tmp_path / "own"
