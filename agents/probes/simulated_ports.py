"""Rates of a simulated host's network ports: one InfiniBand port a GPU, as busy as its GPU."""

from collections.abc import Iterable
from typing import Final

from agents.probes.interface import GpuCheck
from muster.domain.gpu.metrics import value_of
from muster.wire.telemetry import BYTES_PER_GBIT, MAX_PORTS, PortThroughput

LINK_GBPS: Final = 400.0
_SHARE: Final = 0.4
"""Share of its link that a port uses in each direction while its GPU is fully busy."""


def simulated_ports(checks: Iterable[GpuCheck]) -> tuple[PortThroughput, ...]:
    """Return the ports' rates while the GPUs have these readings. A GPU that does not answer uses none of its port."""
    return tuple(_port(check) for check in checks if check.index < MAX_PORTS)


def _port(check: GpuCheck) -> PortThroughput:
    busy = (value_of(check.values, "utilisation_percent") or 0.0) / 100
    bytes_per_s = round(_SHARE * busy * LINK_GBPS * BYTES_PER_GBIT)
    return PortThroughput(
        port=f"mlx5_{check.index}/1",
        sent_bytes_per_s=bytes_per_s,
        received_bytes_per_s=bytes_per_s,
        link_gbps=LINK_GBPS,
    )
