"""One host on a tree of its own: network, pressure, an InfiniBand port, an Ethernet interface."""

from pathlib import Path

import pytest

from tests.agents.host.played_host import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.tree.network()
    made.tree.pressure()
    made.tree.infiniband()
    made.tree.ethernet()
    return made
