"""Options that lists share: bounds in time and the order, the place of a host, and the job that has GPUs there."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.moments import MOMENT, moment_in
from muster.cli.framework.names import TenantOption, tenant_named

if TYPE_CHECKING:
    from muster.client.calls import Holder, Within
    from muster.client.rest import RestClient

RackOption = Annotated[str | None, typer.Option(help=parameter_help("rack"))]
TierOption = Annotated[str | None, typer.Option(help=parameter_help("tier"))]
LabelOption = Annotated[list[str] | None, typer.Option(help=parameter_help("label"), metavar="NAME[=VALUE]")]
NamePart = Annotated[str | None, typer.Option(help=parameter_help("name"))]
NameOrder = Annotated[
    Literal["name", "newest", "oldest"], typer.Option(help=parameter_help("order", "name, newest or oldest."))
]
ActiveOption = Annotated[bool | None, typer.Option("--active/--ended", help=parameter_help("active"))]
OldestFirst = Annotated[bool, typer.Option("--oldest-first", help=parameter_help("order", "With it the oldest first."))]
RoleOption = Annotated[list[str] | None, typer.Option(help=parameter_help("role"))]
Limit = Annotated[int, typer.Option(min=1, help=parameter_help("limit"))]


@dataclass(frozen=True)
class WithinOptions:
    """Bounds in time, and the order by it."""

    since: Annotated[str | None, typer.Option(help=parameter_help("since", MOMENT))] = None
    until: Annotated[str | None, typer.Option(help=parameter_help("until", MOMENT))] = None
    oldest_first: OldestFirst = False

    def query(self) -> "Within":
        """Return what was given. Raises ``typer.BadParameter``, which names the option, for a text that is no time."""
        found = bounds(self.since, self.until)
        if self.oldest_first:
            found["order"] = "oldest"
        return found


def bounds(since: str | None, until: str | None) -> "Within":
    """Return the bounds in time that were given. Raises ``typer.BadParameter`` as ``WithinOptions.query`` does."""
    found: Within = {}
    if since is not None:
        found["since"] = moment_in(since, "--since")
    if until is not None:
        found["until"] = moment_in(until, "--until")
    return found


@dataclass(frozen=True)
class PlaceOptions:
    """The host's rack and labels."""

    rack: RackOption = None
    label: LabelOption = None


@dataclass(frozen=True)
class HolderOptions:
    """Whose job has GPUs there now."""

    tenant: TenantOption = None
    tier: TierOption = None

    def query(self, client: "RestClient") -> "Holder":
        """Return what was given."""
        return {"tenant_id": None if self.tenant is None else tenant_named(client, self.tenant), "tier": self.tier}
