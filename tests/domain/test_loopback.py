"""What is this machine, and what only looks so: a key goes there in clear."""

import pytest

from muster.domain.loopback import is_loopback


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.10", "::1", "[::1]"])
def test_this_machine_is_known_by_its_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "127.evil.example", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1"])
def test_what_only_begins_so_is_another_machine(host: str) -> None:
    assert not is_loopback(host)
