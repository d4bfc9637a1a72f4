"""Objects as files: a disk that is full, a reserve, an order of keys, folders that come and go."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.store.faults import StoreFullError, StoreSlowError, fault_of
from muster.store.service import disk
from muster.store.service.disk import DiskFullError, ObjectFolder
from tests.store.service.running import running
from tests.store.stores import chunk_of

PARTS = st.text("ab-0.", min_size=1, max_size=2).filter(lambda text: text[0] not in "-.")
KEYS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


def folder_in(path: Path, *, reserve_bytes: int = 0) -> ObjectFolder:
    made = ObjectFolder(path, reserve_bytes=reserve_bytes)
    made.take()
    return made


def put(folder: ObjectFolder, key: str, content: bytes = b"x") -> None:
    with folder.draft(len(content)) as draft:
        draft.write(memoryview(content))
        draft.place(key)


def drafts(path: Path) -> list[Path]:
    return list((path / "drafts").iterdir())


@given(
    keys=st.sets(KEYS, min_size=1, max_size=12),
    prefix=st.sampled_from(["", "a", "a/", "a/b", "b-"]),
    at=st.integers(0, 12),
)
def test_a_list_has_the_order_of_the_keys_from_any_position(
    tmp_path_factory: pytest.TempPathFactory, keys: set[str], prefix: str, at: int
) -> None:
    folder = folder_in(tmp_path_factory.mktemp("disk"))
    present: list[str] = []
    for key in sorted(keys):
        if not any(key.startswith(f"{other}/") or other.startswith(f"{key}/") for other in present):
            put(folder, key)
            present.append(key)
    after = sorted(keys)[min(at, len(keys)) - 1] if at else ""
    expected = [key for key in sorted(present) if key.startswith(prefix) and key > after]
    assert [each.key for each in folder.list(prefix, after)] == expected


def test_the_reserve_of_the_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_in(tmp_path, reserve_bytes=1000)
    monkeypatch.setattr(ObjectFolder, "_free_bytes", lambda _: 1500)
    with folder.draft(300):
        with pytest.raises(DiskFullError, match="300 B would take from the reserve of 1 kB"):
            folder.draft(300)
        with folder.draft(200):
            assert len(drafts(tmp_path)) == 2
    with folder.draft(500):
        assert not folder.is_full
    monkeypatch.setattr(ObjectFolder, "_free_bytes", lambda _: 999)
    assert folder.is_full


def test_a_full_disk_is_answered_as_such_and_what_was_there_stays(tmp_path: Path) -> None:
    with running(tmp_path, reserve_bytes=1 << 62) as store:
        answer = store.put(chunk_of(b"a"), b"a")
        fault = fault_of(answer.status_code, answer.content)
        assert answer.status_code == 507
        assert isinstance(fault, StoreFullError)
        assert "the operator must make space" in str(fault)
        assert "larger disk" in fault.suggestion
        assert store.client.get(f"{store.url}/healthz").text == "full\n"
        assert drafts(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("call", "number", "kind"),
    [
        ("write", errno.ENOSPC, StoreFullError),
        ("write", errno.EDQUOT, StoreFullError),
        ("fsync", errno.ENOSPC, StoreFullError),
        ("fsync", errno.EIO, StoreSlowError),
        ("open", errno.ENOSPC, StoreFullError),
        ("open", errno.EROFS, StoreSlowError),
    ],
)
def test_a_disk_that_fails_in_an_upload_leaves_the_old_object_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, kind: type[Exception]
) -> None:
    """The calls of the service's own thread fail, as they would on such a disk."""
    with running(tmp_path) as store:
        key = chunk_of(b"a")
        assert store.put(key, b"a").status_code == 200
        real = getattr(os, call)

        def failing(*arguments: object, **named: object) -> object:
            if threading.current_thread().name == "connection":
                raise OSError(number, os.strerror(number))
            return real(*arguments, **named)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            answer = store.put(key, b"a")
        assert isinstance(fault_of(answer.status_code, answer.content), kind)
        assert drafts(tmp_path / "store") == []
        assert store.get(key).content == b"a"


def test_a_file_that_cannot_be_read_is_an_error_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_path: Path) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with running(tmp_path) as store:
        store.put(chunk_of(b"a"), b"a")
        monkeypatch.setattr(disk, "open_plain", failing)
        answer = store.get(chunk_of(b"a"))
        assert answer.status_code == 500
        assert "the store's disk failed: Input/output error" in answer.text


def test_a_folder_goes_with_its_last_object_and_comes_again(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    put(folder, "tenants/a/1")
    put(folder, "tenants/b/2")
    folder.delete("tenants/a/1")
    assert sorted(each.name for each in (tmp_path / "objects/tenants").iterdir()) == ["b"]
    folder.delete("tenants/b/2")
    assert list((tmp_path / "objects").iterdir()) == []
    put(folder, "tenants/a/1")
    assert [each.key for each in folder.list("", "")] == ["tenants/a/1"]


def test_uploads_and_deletions_in_one_folder_at_once_lose_nothing(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    faults: list[Exception] = []

    def work(number: int) -> None:
        try:
            for at in range(60):
                put(folder, f"tenants/a/{number}.{at}")
                if at % 3:
                    folder.delete(f"tenants/a/{number}.{at}")
        except Exception as fault:  # noqa: BLE001  # whatever it is, the test shows it
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(list(folder.list("", ""))) == 3 * 20


def test_drafts_of_a_folder_in_use_are_left_alone(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    with folder.draft(1):
        with pytest.raises(disk.FolderInUseError):
            ObjectFolder(tmp_path, reserve_bytes=0).take()
        assert len(drafts(tmp_path)) == 1


@pytest.fixture(name="umask", autouse=True)
def fixture_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_no_other_account_reads_what_is_stored(tmp_path: Path) -> None:
    folder = folder_in(tmp_path / "store")
    put(folder, "tenants/a/1")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "store").rglob("*")}
    assert modes == {0o600, 0o700}
