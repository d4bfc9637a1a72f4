"""The indicator M8: bytes through network ports and over NVLinks."""

from typing import Final

from ledger.figures.definitions import Figure, Kind, Source

_OF_HOSTS: Final = (
    "Ports that are down. Hosts of several jobs are a part of their own, since a port does not show which job its "
    "bytes belong to; so are hosts without a job."
)

OF_NETWORKS: Final = (
    Figure(
        name="network_throughput",
        indicator="M8",
        unit="GB/s",
        better="neither",
        source=Source.GPUS,
        kind=Kind.MEAN,
        meaning="Bytes per second through all network ports of a host, sent and received together, while one job ran "
        "alone there; a GB is 10^9 bytes. Percentiles are of samples, so bursts count. An hour is first counted "
        "one hour after its end.",
        counted_from="telemetry: byte counters of ports, as rates since the sample before",
        excluded=f"{_OF_HOSTS} All bytes of the host count, checkpoints and the agent's reports too.",
        parts={
            "alone": "samples of hosts on which one job ran alone",
            "sent": "bytes sent in them",
            "received": "bytes received in them",
            "shared": "samples of hosts of several jobs",
            "free": "samples of hosts without a job",
        },
        top=("alone",),
        bottom=("alone",),
        spread=("alone",),
        target="up to what the hardware can: read `network_saturation`",
    ),
    Figure(
        name="network_saturation",
        indicator="M8",
        unit="",
        better="neither",
        source=Source.GPUS,
        kind=Kind.MEAN,
        meaning="The busier direction of a port by its link's speed, while one job ran alone on the host. Percentiles "
        "are of samples of ports, so bursts count: near 1, jobs wait for the link.",
        counted_from="telemetry: rates of ports, and their links' speed",
        excluded=f"Ports of unknown speed. {_OF_HOSTS}",
        parts={
            "alone": "samples of ports of hosts on which one job ran alone",
            "shared": "samples of ports of hosts of several jobs",
            "free": "samples of ports of hosts without a job",
        },
        top=("alone",),
        bottom=("alone",),
        spread=("alone",),
        target="up to 100 %; bursts near it congest",
    ),
    Figure(
        name="nvlink_throughput",
        indicator="M8",
        unit="GB/s",
        better="neither",
        source=Source.GPUS,
        kind=Kind.MEAN,
        meaning="Bytes per second over all NVLinks of a GPU, sent and received together, while it was assigned to an "
        "attempt; a GB is 10^9 bytes. Percentiles are of samples.",
        counted_from="telemetry, the metrics `nvlink_sent_bytes_per_s` and `nvlink_received_bytes_per_s`",
        excluded="GPUs whose driver counts no bytes. GPUs that were free are a part of their own.",
        parts={
            "assigned": "samples of GPUs that were assigned",
            "sent": "bytes sent in them",
            "received": "bytes received in them",
            "free": "samples of GPUs that were not assigned",
        },
        top=("assigned",),
        bottom=("assigned",),
        spread=("assigned",),
    ),
)
