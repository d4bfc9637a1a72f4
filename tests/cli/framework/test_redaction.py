"""Where secrets begin and end: the shortest that is struck, and the largest file that is read for them."""

from pathlib import Path

from muster.cli.framework.redaction import LEAST_SECRET, STRUCK, Redaction, secrets_in


def test_the_shortest_secret_that_is_struck_has_so_many_characters() -> None:
    words = "abcdefgh"[:LEAST_SECRET]
    assert Redaction([words]).text(f"a line with {words} again") == f"a line with {STRUCK} again"
    assert Redaction([words[1:]]).text(f"a line with {words} again") == f"a line with {words} again"


def test_a_file_of_64_kib_is_read_for_its_secret_and_a_larger_one_is_not(tmp_path: Path) -> None:
    secret = "the-secret-of-the-folder\n"
    (tmp_path / "whole.key").write_text(secret + "\n" * (64 * 1024 - len(secret)))
    (tmp_path / "larger.token").write_text("another-secret\n" + "\n" * 64 * 1024)
    assert list(secrets_in(tmp_path)) == [secret.strip()]


def test_a_key_of_the_content_store_is_struck_without_its_name_too_and_so_is_a_signature(tmp_path: Path) -> None:
    (tmp_path / "store.key").write_text("muster-1 the-secret-of-the-store\n")
    redaction = Redaction(secrets_in(tmp_path))
    assert redaction.text("signed with the-secret-of-the-store") == f"signed with {STRUCK}"
    assert redaction.text("GET /a?X-Amz-Signature=0123abcd&b=1") == f"GET /a?X-Amz-Signature={STRUCK}&b=1"
