"""Keepers of a host's outputs, which start real collecting processes."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from muster.client.host import HostClient
from muster.client.key_file import KeyFile
from tests.host_case import HostCase
from tests.waiting import wait_until
from workers.host.content.places import SET_ASIDE
from workers.host.outputs.keeper import OutputKeeper


@contextmanager
def keeper_of(host: HostCase, most_bytes: int = 1 << 30) -> Iterator[OutputKeeper]:
    assert host.bundles is not None
    with closing(HostClient(host.bundles.api_url, KeyFile(host.bundles.key_file))) as client:
        keeper = OutputKeeper(host.bundles, client, most_bytes)
        try:
            yield keeper
        finally:
            keeper.close()


def waiting_in(host: HostCase) -> list[str]:
    return sorted(path.name for path in (host.state_dir / SET_ASIDE).glob("*"))


def collect(host: HostCase, is_so: Callable[[], bool] | None = None, **limits: int) -> None:
    """Let a keeper work until ``is_so``, or until nothing waits any more."""
    with keeper_of(host, **limits) as keeper:

        def turned() -> bool:
            keeper.turn()
            return is_so() if is_so is not None else not waiting_in(host)

        wait_until(turned, timeout_s=60)
