"""Attributes of a GPU as its agent reports them, for cohorts and the drift report: all of them texts.

Pure: from the newest ``GPU_STATE`` of the GPU, the class of its node's network, and the texts of its host's state.
"""

from collections.abc import Mapping
from typing import Any

from muster.domain.evidence.state_readings import HOST_READING_TEXTS, words_in
from muster.domain.gpu.cohort_attributes import (
    FABRIC_CLIQUE,
    HOST,
    NETWORK,
    NIC_RATE,
    STATE_ATTRIBUTES,
    TEXT_ATTRIBUTES,
)


def attributes_reported(
    state: Mapping[str, Any], text: str, network: str | None, host_text: str = "", nic_rate: str | None = None
) -> dict[str, str]:
    """Return the reported attributes by the names of ``REPORTED_ATTRIBUTES``, without unreported ones.

    ``fabric_clique``: ``cluster/clique`` in an NVLink domain of several hosts, else NVML's number alone.
    """
    words = words_in(text)
    found = {name: f"{state[name]:.12g}" for name in STATE_ATTRIBUTES if state.get(name) is not None}
    found |= {name: words[name] for name in TEXT_ATTRIBUTES if name in words}
    of_host = words_in(host_text, HOST_READING_TEXTS)
    found |= {name: of_host[name] for name in HOST if name in of_host}
    if network is not None:
        found[NETWORK] = network
    if nic_rate is not None:
        found[NIC_RATE] = nic_rate
    if state.get(FABRIC_CLIQUE) is not None:
        found[FABRIC_CLIQUE] = _clique(state[FABRIC_CLIQUE], words.get("fabric_cluster"))
    return found


def _clique(number: float, cluster: str | None) -> str:
    return f"{number:.12g}" if cluster is None else f"{cluster}/{number:.12g}"
