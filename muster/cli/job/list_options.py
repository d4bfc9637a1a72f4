"""Conditions of ``muster job list``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.framework.moments import MOMENT, moment_in
from muster.cli.framework.names import node_named

if TYPE_CHECKING:
    from muster.client.jobs import JobConditions
    from muster.client.rest import RestClient


@dataclass(frozen=True)
class ConditionOptions:
    """Which jobs, besides state, name and tenant, and in which order."""

    tier: Annotated[str | None, typer.Option(help="Jobs of this tier alone.")] = None
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, or NAME for any value; may be repeated, then all hold.")
    ] = None
    node: Annotated[str | None, typer.Option(help="Jobs that have a part on this host now, by its name or id.")] = None
    rack: Annotated[str | None, typer.Option(help="Jobs that have a part in this rack now.")] = None
    since: Annotated[str | None, typer.Option(help=f"Submitted then or later. {MOMENT}")] = None
    until: Annotated[str | None, typer.Option(help=f"Submitted before. {MOMENT}")] = None
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="The oldest first.")] = False

    def conditions(self, client: "RestClient") -> "JobConditions":
        """Return what was given. Raises ``typer.BadParameter``, which names the option, for a text that is no time."""
        found: JobConditions = {}
        if self.tier is not None:
            found["tier"] = self.tier
        if self.label:
            found["label"] = self.label
        if self.node is not None:
            found["node"] = node_named(client, self.node)
        if self.rack is not None:
            found["rack"] = self.rack
        if self.since is not None:
            found["since"] = moment_in(self.since, "--since")
        if self.until is not None:
            found["until"] = moment_in(self.until, "--until")
        if self.oldest_first:
            found["order"] = "oldest"
        return found
