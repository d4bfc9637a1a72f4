"""Encrypted files: what was written comes back, and nothing else is accepted as it."""

import re
from pathlib import Path

import pytest

from muster.train.checkpoint import sealing
from muster.train.checkpoint.keys import Key, KeyFileError, Keyring, MissingKeyError, key_of
from muster.train.checkpoint.sealing import FRAME_BYTES, HEADER_BYTES, TAG_BYTES, NotOpenedError, Sink
from muster.train.runtime.durable_files import writing_durably

KEY = key_of(b"\x11" * 32)
PLACE = "step-00000040/gen-7/rank-00000.pt"
FRAME = FRAME_BYTES + TAG_BYTES


def seal(path: Path, *pieces: bytes, key: Key = KEY, place: str = PLACE) -> bytes:
    def dump(file: Sink) -> None:
        for piece in pieces:
            file.write(piece)

    with writing_durably(path) as file:
        sealing.sealed(dump, key, place)(file)
    return path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 2 * FRAME_BYTES])
def test_what_was_written_comes_back(tmp_path: Path, size: int) -> None:
    content = (b"weights!" * (size // 8 + 1))[:size]
    found = seal(tmp_path / "file", content[: size // 3], content[size // 3 :])
    num_frames = max(1, -(-size // FRAME_BYTES))
    assert len(found) == HEADER_BYTES + size + num_frames * TAG_BYTES
    assert sealing.opened(found, KEY, PLACE) == content
    assert b"weights!" not in found


def test_the_same_file_is_never_the_same_twice(tmp_path: Path) -> None:
    first, second = (seal(tmp_path / name, b"weights") for name in ("a", "b"))
    assert first != second


def test_what_was_cut_off_swapped_changed_or_put_elsewhere_does_not_open(tmp_path: Path) -> None:
    content = b"a" * FRAME_BYTES + b"b" * FRAME_BYTES + b"c"
    whole = seal(tmp_path / "file", content)
    header, first, second = whole[:HEADER_BYTES], *(whole[HEADER_BYTES + at * FRAME :][:FRAME] for at in (0, 1))
    last = whole[HEADER_BYTES + 2 * FRAME :]
    flipped = bytearray(whole)
    flipped[HEADER_BYTES + FRAME + 9] ^= 1
    for harmed in (
        header + first + second,
        header + first,
        header + second + first + last,
        header + first + last,
        header + first + second + last + last,
        whole + b"x",
        whole[:-1],
        bytes(flipped),
        seal(tmp_path / "another", content)[:HEADER_BYTES] + first + second + last,
        content,
        b"",
    ):
        with pytest.raises(NotOpenedError):
            sealing.opened(harmed, KEY, PLACE)
    for key, place in ((key_of(b"\x22" * 32), PLACE), (KEY, PLACE.replace("gen-7", "gen-8"))):
        with pytest.raises(NotOpenedError, match="frame 0 of 3 is not what was encrypted here"):
            sealing.opened(whole, key, place)


def test_the_first_key_encrypts_and_any_decrypts(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# new\n{'22' * 32}\n\n  {'11' * 32}  # old\n", encoding="ascii")
    keyring = Keyring.read(path)
    assert (keyring.first, keyring.key(KEY.id)) == (key_of(b"\x22" * 32), KEY)
    assert re.fullmatch("[0-9a-f]{16}", KEY.id)
    assert keyring.encrypting_under(KEY.id).first == KEY
    with pytest.raises(MissingKeyError, match=f"key ffff is needed; .*keys holds {keyring.first.id}, {KEY.id}"):
        keyring.key("ffff")
    assert "11" * 8 not in repr(KEY)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "holds no checkpoint key"),
        (b"# none\n", "holds no checkpoint key"),
        (b"11" * 32 + b"\nsecret-words\n", "line 2 of .* is no checkpoint key, which is 64 hex digits"),
        (b"\xff\xfe", "it is not plain text"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_holds_no_keys_is_refused_and_not_quoted(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyFileError, match=why) as found:
        Keyring.read(path)
    assert "secret-words" not in str(found.value)
