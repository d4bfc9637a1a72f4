"""What the kills of the round trip count as torn, and that each torn thing is recorded with its kill."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from benchmarks import roundtrip_deaths, roundtrip_kills
from benchmarks.roundtrip_deaths import TornError, stored, torn
from benchmarks.roundtrip_kills import Death, Size
from benchmarks.roundtrip_plane import Plane
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.domain.ids import TenantId
from muster.identity import new_id
from muster.store.faults import ObjectGoneError, StoreSlowError
from muster.store.keys import chunk_key, manifest_key

TENANT = TenantId(new_id("tenant"))
CONTENT = b"print()"
MANIFEST = encode(Manifest(VERSION, (Entry("main.py", Kind.FILE, 7, (digest_of(CONTENT),)),)))
DIGEST = digest_of(MANIFEST)


@dataclass
class Store:
    """A store by its contents, the first calls of which it does not answer."""

    contents: dict[str, bytes]
    num_unanswered: int = 0
    read_keys: list[str] = field(default_factory=list)

    def read(self, key: str, most_bytes: int) -> bytes:
        del most_bytes
        self.read_keys.append(key)
        if len(self.read_keys) <= self.num_unanswered:
            raise StoreSlowError("the content store does not answer")
        if key not in self.contents:
            raise ObjectGoneError
        return self.contents[key]


@dataclass
class PlaneOf:
    store: Store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(roundtrip_deaths, "ASK_AGAIN_S", 0.0)
    chunk = chunk_key(TENANT, digest_of(CONTENT))
    return Store({manifest_key(TENANT, DIGEST): MANIFEST, chunk: CONTENT})


def read(store: Store) -> dict[str, bytes]:
    return stored(cast("Plane", PlaneOf(store)), TENANT, DIGEST)


def test_a_store_that_answers_late_has_nothing_torn(store: Store) -> None:
    store.num_unanswered = 3
    assert read(store) == {"main.py": CONTENT}


def test_a_store_that_never_answers_is_a_fault_of_the_run_and_nothing_torn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roundtrip_deaths, "PATIENCE_S", 0)
    store.num_unanswered = 1_000_000
    with pytest.raises(StoreSlowError):
        read(store)


def test_a_part_that_the_store_lacks_is_torn(store: Store) -> None:
    key = chunk_key(TENANT, digest_of(CONTENT))
    del store.contents[key]
    with pytest.raises(TornError, match=key):
        read(store)
    store.contents[manifest_key(TENANT, DIGEST)] = MANIFEST[:-1]
    with pytest.raises(TornError, match="its manifest has other bytes"):
        read(store)


def test_what_is_torn_is_named() -> None:
    wanted = {"a": b"1", "b": b"22", "c": b"3"}
    assert torn("outputs", lambda: wanted, wanted) == []
    [sentence] = torn("outputs", lambda: {"b": b"2", "c": b"3", "d": b""}, wanted)
    assert sentence == "outputs: a is missing, b has other bytes (1 of 2), d is too much"
    assert torn("outputs", lambda: {**wanted, "d": b""}, wanted, is_all=False) == []


def test_each_torn_thing_is_recorded_with_its_kill(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deaths = [
        Death(1, "upload", "api", "bundle.begin.after_commit=kill", []),
        Death(2, "build", "build", "build.in_build=kill@2", ["the environment at the end: a is missing", "more"]),
    ]
    monkeypatch.setattr(roundtrip_kills, "shared_plane", lambda: None)
    monkeypatch.setattr(roundtrip_kills, "kills", lambda *_: iter(deaths))
    [[figure, number]] = list(roundtrip_kills.measure(Size(2)))
    row: dict[str, Any] = figure.row()
    assert (row["value"], row["holds"], number.value) == (2.0, False, 2.0)
    fault = "torn by kill 2, build, build at build.in_build=kill@2: the environment at the end: a is missing"
    assert row["peers"][fault] == 1.0
    assert fault in capsys.readouterr().err
