"""To which receivers notifications may go, and for how long they are kept."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated

from pydantic import AfterValidator, Field

from muster.domain.strict import StrictModel


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.2.0.0/24: {error}") from error


Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], Field(max_length=64, strict=False)]


Domains = Annotated[tuple[Annotated[str, AfterValidator(str.lower)], ...], Field(max_length=64, strict=False)]


class NotificationPolicy(StrictModel):
    """Which networks routes reach. Public addresses are always reached, by TLS alone."""

    operator_networks: Networks = Field(
        (), description="Networks that routes of operators reach besides public addresses, there without TLS too."
    )
    tenant_networks: Networks = Field(
        (),
        description="Networks that routes of tenants reach besides public addresses, there without TLS too. Any "
        "tenant can send requests to whatever is in them.",
    )
    mail_domains: Annotated[
        tuple[Annotated[str, AfterValidator(str.lower)], ...], Field(max_length=64, strict=False)
    ] = Field((), description="Domains to which routes of tenants send mail; none: to any.")
    most_routes: Annotated[int, Field(ge=0, le=1_000)] = Field(
        20, description="How many routes a tenant may have, and how many the operators."
    )
    keep_days: Annotated[float, Field(ge=1, le=3650, strict=False)] = Field(
        30.0, description="Notifications that were delivered or given up, with their tries."
    )

    def networks_of(self, tenant_id: str | None) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return the networks that a route of this tenant, or of the operators (None), reaches."""
        return tuple(map(ip_network, self.operator_networks if tenant_id is None else self.tenant_networks))

    def refused_address(self, tenant_id: str | None, addresses: Sequence[str]) -> int | None:
        """Return the place of the first mail address to which a route of this tenant sends nothing."""
        if tenant_id is None or not self.mail_domains:
            return None
        is_refused = (address.rpartition("@")[2].lower() not in self.mail_domains for address in addresses)
        return next((place for place, refused in enumerate(is_refused) if refused), None)
