"""Networks of callers: one address, or all that one host of IPv6 has."""

import pytest

from muster.domain.networks import network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("a-socket", "a-socket"),
        (None, ""),
    ],
)
def test_addresses_of_one_network_count_together(address: str | None, network: str) -> None:
    assert network_of(address) == network
