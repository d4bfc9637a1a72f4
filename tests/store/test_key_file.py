"""The file of access keys: private, read again when it changes, and a key is replaced without an interruption."""

import os
from pathlib import Path

import pytest

from muster.settings import SettingsError
from muster.store import key_file
from muster.store.key_file import KeyFile, make_key_file, read_keys
from muster.store.signing import AccessKey
from tests.store.stores import OurStore, chunk_of, now, ours
from tests.waiting import wait_until


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    draft = path.with_suffix(".new")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(mode)
    draft.replace(path)
    return path


def test_a_made_key_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "folder/store.key"
    make_key_file(path)
    (key,) = read_keys(path)
    make_key_file(path)
    assert read_keys(path) == (key,)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(key.secret) == 64


@pytest.mark.parametrize(
    "text", ["", "\n", "# two", "a ü", "name", "name secret more", "a 1\na 2", "\n".join(f"a{n} 1" for n in range(9))]
)
def test_a_file_that_is_none_of_keys_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"must have 1 to 8 lines|stands twice"):
        KeyFile(write(tmp_path / "k", text))


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has the mode 0640: set it to 0600"):
        KeyFile(write(tmp_path / "k", "a 1", mode=0o640))


def test_a_change_counts_and_one_that_cannot_be_read_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "CHECKED_S", 0.0)
    keys = KeyFile(write(tmp_path / "k", "a 1\n"))
    write(tmp_path / "k", "# Schlüssel\nb 2\n\na 1\n")
    assert keys.current() == (AccessKey("b", "2"), AccessKey("a", "1"))
    write(tmp_path / "k", "broken")
    assert keys.current()[0].name == "b"
    os.unlink(tmp_path / "k")  # noqa: PTH108  # as a file that is being replaced by hand
    assert keys.current()[0].name == "b"
    write(tmp_path / "k", "c 3")
    assert keys.current() == (AccessKey("c", "3"),)


def accepts(store: OurStore, url: str) -> bool:
    return store.client.get(url).status_code == 200


def test_a_key_is_replaced_while_addresses_of_the_old_one_count(tmp_path: Path) -> None:
    """The steps of docs/operator/content-store.md, on a service that runs on."""
    with ours(tmp_path / "store") as store:
        store.put(chunk_of(b"a"), b"a")
        old_url = store.objects().download(chunk_of(b"a"), now()).url
        old = store.key_file.read_text()
        write(store.key_file, f"fresh {'5' * 64}\n{old}")
        new_url = store.objects().download(chunk_of(b"a"), now()).url
        assert "X-Amz-Credential=fresh%2F" in new_url
        assert accepts(store, new_url)
        assert accepts(store, old_url)
        write(store.key_file, f"fresh {'5' * 64}\n")
        wait_until(lambda: not accepts(store, old_url))
        assert accepts(store, new_url)
