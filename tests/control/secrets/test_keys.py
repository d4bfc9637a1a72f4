"""Keys of secrets come from a file outside the database, and an envelope opens under its key and at its place alone."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from control.secrets.envelopes import Envelope, Place, opened, rewrapped, seal
from control.secrets.key_file import FileKeys
from control.secrets.key_wrapping import WrappedKey
from muster.domain.errors import SecretKeyError
from muster.domain.ids import SecretId, TenantId
from muster.settings import make_secret_keys_file
from tests.control.secrets.secret_case import KeyService, key_file

PLACE = Place(TenantId("ten_a"), SecretId("sec_a"), "hf-token", 3)
VALUE = b"a value of a tenant"


def test_the_first_key_of_the_file_seals_and_any_of_them_opens(tmp_path: Path) -> None:
    old = seal(key_file(tmp_path / "keys", "2025"), PLACE, VALUE)
    both = key_file(tmp_path / "keys", "2026", "2025")
    new = seal(both, PLACE, VALUE)
    assert (old.wrapped.key_id, new.wrapped.key_id) == ("2025", "2026")
    assert opened(both, PLACE, old) == opened(both, PLACE, new) == VALUE
    assert (both.active_key_id(), both.key_ids()) == ("2026", frozenset({"2025", "2026"}))
    assert VALUE not in new.sealed + new.wrapped.content + new.nonce
    assert len(new.nonce) == 12


def test_no_two_envelopes_of_one_value_are_alike(tmp_path: Path) -> None:
    keys = key_file(tmp_path / "keys", "k")
    first, second = seal(keys, PLACE, VALUE), seal(keys, PLACE, VALUE)
    assert first.nonce != second.nonce
    assert first.sealed != second.sealed
    assert first.wrapped.content != second.wrapped.content


@pytest.mark.parametrize(
    "elsewhere",
    [
        replace(PLACE, tenant_id=TenantId("ten_b")),
        replace(PLACE, secret_id=SecretId("sec_b")),
        replace(PLACE, name="wandb"),
        replace(PLACE, version=4),
    ],
)
def test_an_envelope_that_is_moved_does_not_open(tmp_path: Path, elsewhere: Place) -> None:
    keys = key_file(tmp_path / "keys", "k")
    envelope = seal(keys, PLACE, VALUE)
    with pytest.raises(SecretKeyError, match="the row was changed"):
        opened(keys, elsewhere, envelope)
    # Not even where the data key itself is wrapped for the other place.
    moved = replace(envelope, wrapped=keys.wrap(keys.unwrap(envelope.wrapped, PLACE.about), elsewhere.about))
    with pytest.raises(SecretKeyError, match="is not as it was stored"):
        opened(keys, elsewhere, moved)


@pytest.mark.parametrize("part", ["wrapped", "nonce", "sealed", "key_id"])
def test_a_changed_envelope_does_not_open(tmp_path: Path, part: str) -> None:
    keys = key_file(tmp_path / "keys", "k", "k2")
    envelope = seal(keys, PLACE, VALUE)
    flipped = {
        "wrapped": replace(envelope, wrapped=replace(envelope.wrapped, content=_flipped(envelope.wrapped.content))),
        "nonce": replace(envelope, nonce=_flipped(envelope.nonce)),
        "sealed": replace(envelope, sealed=_flipped(envelope.sealed)),
        "key_id": replace(envelope, wrapped=replace(envelope.wrapped, key_id="k2")),
    }
    with pytest.raises(SecretKeyError):
        opened(keys, PLACE, flipped[part])
    assert opened(keys, PLACE, envelope) == VALUE


def _flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def test_a_key_that_is_gone_is_named_with_the_ones_that_are_there(tmp_path: Path) -> None:
    envelope = seal(key_file(tmp_path / "keys", "2025"), PLACE, VALUE)
    with pytest.raises(SecretKeyError, match="the key 2025 is needed, and MUSTER_SECRET_KEYS_FILE has only 2026"):
        opened(key_file(tmp_path / "keys", "2026"), PLACE, envelope)


def test_a_changed_file_is_read_without_a_restart(tmp_path: Path) -> None:
    keys = key_file(tmp_path / "keys", "2025")
    assert keys.active_key_id() == "2025"
    key_file(tmp_path / "keys", "2026", "2025")
    os.utime(tmp_path / "keys", ns=(0, 0))  # whatever the clock of the file system resolves
    assert keys.active_key_id() == "2026"


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("k " + "0" * 64, 0o640, "has the mode 0640: set it to 0600 or 0400"),
        ("k " + "0" * 64, 0o604, "has the mode 0604"),
        ("", 0o600, "has no key"),
        ("# only words\n\n", 0o600, "has no key"),
        ("k " + "0" * 63, 0o600, "line 1 of .* is no key"),
        ("\nk s3cr3t", 0o600, "line 2 of .* is no key"),
        ("0" * 64, 0o600, "line 1 of .* is no key"),
        ("k " + "0" * 64 + "\nk " + "1" * 64, 0o600, "line 2 of .* has the id k, which a line above has"),
    ],
)
def test_a_file_that_cannot_be_used_names_the_line_and_shows_nothing_of_it(
    tmp_path: Path, content: str, mode: int, words: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(SecretKeyError, match=words) as refused:
        FileKeys(path).active_key_id()
    assert "s3cr3t" not in str(refused.value)
    assert "0000" not in str(refused.value).replace("0600", "")
    assert str(tmp_path) not in str(refused.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SecretKeyError, match="MUSTER_SECRET_KEYS_FILE cannot be read: No such file"):
        FileKeys(tmp_path / "nowhere").active_key_id()
    with pytest.raises(SecretKeyError, match="cannot be read: Is a directory"):
        FileKeys(tmp_path).active_key_id()


def test_the_file_of_a_local_stack_is_made_once_and_for_us_alone(tmp_path: Path) -> None:
    make_secret_keys_file(tmp_path / "secrets.key")
    made = (tmp_path / "secrets.key").read_bytes()
    make_secret_keys_file(tmp_path / "secrets.key")
    assert (tmp_path / "secrets.key").read_bytes() == made
    assert (tmp_path / "secrets.key").stat().st_mode & 0o777 == 0o600
    assert FileKeys(tmp_path / "secrets.key").active_key_id() == "local-1"


def test_a_key_service_receives_data_keys_alone_and_its_fault_is_reported() -> None:
    service = KeyService()
    envelope = seal(service, PLACE, VALUE)
    assert opened(service, PLACE, envelope) == VALUE
    service.keys["vault:v2"] = os.urandom(32)
    service.active = "vault:v2"
    again = rewrapped(service, PLACE, envelope.wrapped)
    assert again.key_id == "vault:v2"
    assert opened(service, PLACE, replace(envelope, wrapped=again)) == VALUE
    assert all(VALUE not in sent for sent in service.seen)
    service.is_sealed = True
    with pytest.raises(SecretKeyError, match="sealed"):
        opened(service, PLACE, Envelope(WrappedKey("vault:v2", again.content), envelope.nonce, envelope.sealed, 0))
