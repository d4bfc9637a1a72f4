"""Peers of each host: few at a time, never itself, and in time every rack from every rack."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.pairwise.pair_probes import PEERS, ROUND_S, gang_peer, nearest_rank, peers_of, round_at
from muster.domain.ids import NodeId


def fleet(*sizes: int) -> dict[str, list[NodeId]]:
    return {f"r{rack:03}": [NodeId(f"n{rack:03}-{host:02}") for host in range(size)] for rack, size in enumerate(sizes)}


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    number=st.integers(0, 1 << 40),
    num_peers=st.integers(1, 4),
)
def test_none_probes_itself_or_one_twice_or_more_than_it_should(sizes: list[int], number: int, num_peers: int) -> None:
    racks = fleet(*sizes)
    everybody = {host for hosts in racks.values() for host in hosts}
    for host in everybody:
        peers = peers_of(host, racks, number, num_peers)
        assert len(set(peers)) == len(peers) <= num_peers
        assert host not in peers
        assert set(peers) <= everybody
        assert bool(peers) == (len(everybody) > 1)
        assert peers == peers_of(host, racks, number, num_peers)


@pytest.mark.parametrize("sizes", [(1, 1), (4, 4, 4), (8, 3, 5, 1, 7), (2,) * 20])
def test_in_time_every_rack_is_probed_from_every_rack(sizes: tuple[int, ...]) -> None:
    racks = fleet(*sizes)
    rack_of = {host: rack for rack, hosts in racks.items() for host in hosts}
    seen = {
        (rack_of[host], rack_of[peer])
        for number in range(len(sizes))
        for host in rack_of
        for peer in peers_of(host, racks, number)
    }
    alone = {rack for rack, hosts in racks.items() if len(hosts) == 1}
    assert seen == {(one, other) for one in racks for other in racks if one != other or one not in alone}


def test_in_time_every_host_of_a_rack_probes_every_other() -> None:
    racks = fleet(5)
    seen = {(host, peer) for number in range(4) for host in racks["r000"] for peer in peers_of(host, racks, number)}
    assert len(seen) == 5 * 4


def test_no_host_of_racks_alike_is_probed_by_more_than_it_probes() -> None:
    racks = fleet(*(8,) * 32)
    for number in range(40):
        heard = Counter(peer for hosts in racks.values() for host in hosts for peer in peers_of(host, racks, number))
        assert max(heard.values()) <= 2 * PEERS


def test_a_host_that_answers_no_probes_probes_none() -> None:
    assert peers_of(NodeId("stranger"), fleet(3, 3), 7) == ()
    assert peers_of(NodeId("n000-00"), fleet(1), 7) == ()


def test_rounds_and_percentiles() -> None:
    assert (round_at(0), round_at(ROUND_S - 0.1), round_at(ROUND_S)) == (0, 0, 1)
    values = [float(number) for number in range(1, 101)]
    assert (nearest_rank(values, 0.5), nearest_rank(values, 0.99), nearest_rank([7.0], 0.99)) == (50.0, 99.0, 7.0)


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 8])
def test_in_time_each_host_of_a_gang_probes_each_other_one_and_none_is_probed_twice_at_once(num_hosts: int) -> None:
    rounds = [[gang_peer(host, num_hosts, number) for host in range(num_hosts)] for number in range(7, 6 + num_hosts)]
    assert all(len(set(peers)) == num_hosts for peers in rounds)
    for host in range(num_hosts):
        assert {peers[host] for peers in rounds} == set(range(num_hosts)) - {host}
    assert gang_peer(0, 1, 7) is None
