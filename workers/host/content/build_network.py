"""The network of a build: one of its own, with a way to the operator's index alone, or the host's where that may be."""

from typing import Self

import msgspec

from muster.environments.recipe import PackageIndex, Recipe
from workers.host.content.environment_build import BuildEnd
from workers.host.content.faults import NotBuiltError
from workers.host.content.index_relay import IndexRelay, places_of
from workers.host.content.own_network import OwnNetwork


class BuildNetwork:
    """A network of a build's own. In a ``with`` statement its way out is served, once the build's process is there."""

    def __init__(self, index: PackageIndex) -> None:
        """Make it. Raises OSError: this process may not."""
        self._network = OwnNetwork()
        self._relay: IndexRelay | None = None
        if self._network.way_out is not None and index.url is not None:  # a wheelhouse alone needs none
            self._relay = IndexRelay(self._network.way_out, places_of(index.url, index.hosts))

    @property
    def descriptor(self) -> int:
        """Return the network's descriptor, by which a process enters it."""
        return self._network.descriptor

    def __enter__(self) -> Self:
        if self._relay is not None:
            self._relay.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._relay is not None:
            self._relay.__exit__()
        self.close()

    def close(self) -> None:
        self._network.close()

    def index_in(self, index: PackageIndex) -> PackageIndex:
        """Return the index as the build reaches it from this network."""
        return index if self._relay is None else msgspec.structs.replace(index, proxy=self._relay.address)

    def with_refused(self, end: BuildEnd) -> BuildEnd:
        """Return the end with what the build could not reach, if it failed."""
        refused = [] if self._relay is None else self._relay.refused()
        if end.found == "built" or not refused:
            return end
        named = ", ".join(map(str, refused))
        words = f"{end.words}; the build asked for {named}, which is neither the index nor in `package_index_hosts`"
        return msgspec.structs.replace(end, words=words)


def network_for(recipe: Recipe, index: PackageIndex, *, has_user: bool) -> BuildNetwork | None:
    """Return a network for the build; None: this host may make none, and the build needs none.

    Raises NotBuiltError: the build runs code of packages, and would run it in the host's network.
    """
    if (why := _refusal_of(recipe, index, has_user=has_user)) is not None:
        raise NotBuiltError(why)
    try:
        return BuildNetwork(index)
    except OSError as fault:
        if recipe.allows_source and index.source_builds != "anywhere":
            raise NotBuiltError(
                f"this host builds no source distributions: it may not cut their code off from the network ({fault};"
                " its operator may set `source_builds: anywhere`)"
            ) from fault
        return None


def _refusal_of(recipe: Recipe, index: PackageIndex, *, has_user: bool) -> str | None:
    """Return why this host builds no source distributions for a recipe; None: it needs none, or may build them."""
    if not recipe.allows_source or index.source_builds == "anywhere":
        return None
    if index.source_builds == "never":
        return "this host builds no source distributions (`source_builds: never`)"
    if not has_user:
        return (
            "this host builds no source distributions: without `job_uids` their code would run as the host worker"
            " (its operator may set `source_builds: anywhere`)"
        )
    return None
