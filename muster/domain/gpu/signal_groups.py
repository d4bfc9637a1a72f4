"""The groups of signals whose freshness is judged: what an agent delivers of its host and of each GPU.

A report of an agent that knows them states the age of each. An older agent states none, and none is presumed.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class SignalGroup(StrEnum):
    READINGS = "readings"
    STATES = "states"
    XID_EVENTS = "xid_events"
    KERNEL_LOG = "kernel_log"
    DCGM = "dcgm"
    HOST = "host"
    AGENT = "agent"


GROUP_TEXTS: Final[Mapping[SignalGroup, str]] = {
    SignalGroup.READINGS: "readings of each sample, which the driver answers",
    SignalGroup.STATES: "states and counters that the agent inspects about once a minute",
    SignalGroup.XID_EVENTS: "the agent's wait for events of the driver",
    SignalGroup.KERNEL_LOG: "the agent's reader of the kernel log",
    SignalGroup.DCGM: "the dcgm-exporter that the agent asks",
    SignalGroup.HOST: "the agent's readings of ports, disks and clock of the host",
    SignalGroup.AGENT: "the reports of the agent",
}
HOST_WIDE: Final = (SignalGroup.XID_EVENTS, SignalGroup.KERNEL_LOG, SignalGroup.DCGM, SignalGroup.HOST)
"""Groups of which a report states one age for all GPUs of the host. Each is a loop or source of the agent."""
