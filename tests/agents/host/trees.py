"""A host's /proc and /sys as a test writes them."""

from dataclasses import dataclass
from pathlib import Path

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn OutSegs RetransSegs
Tcp: 1 200 120000 -1 {segments} {retransmits}
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors
Udp: 500 0 0 500 {full} 0 {damaged}
"""
SOFTNET = "00000100 {dropped:08x} 00000000 00000000\n00000200 00000000 00000000 00000000\n"


@dataclass(frozen=True, slots=True)
class HostTree:
    root: Path

    def write(self, path: str, text: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def network(
        self, *, segments: int = 1, retransmits: int = 0, full: int = 0, damaged: int = 0, dropped: int = 0
    ) -> None:
        text = SNMP.format(segments=segments, retransmits=retransmits, full=full, damaged=damaged)
        self.write("proc/net/snmp", text)
        self.write("proc/net/softnet_stat", SOFTNET.format(dropped=dropped))

    def pressure(self, *, cpu: float = 0, memory: float = 0, io: float = 0) -> None:
        for resource, some, full in (("cpu", cpu, 0.0), ("memory", 99.0, memory), ("io", 99.0, io)):
            self.write(
                f"proc/pressure/{resource}",
                f"some avg10=0.00 avg60={some:.2f} avg300=0.00 total=1\n"
                f"full avg10=0.00 avg60={full:.2f} avg300=0.00 total=1\n",
            )

    def infiniband(
        self, state: str = "4: ACTIVE", *, device: str = "mlx5_0", rate: str = "400 Gb/sec (4X NDR)"
    ) -> None:
        port = f"sys/class/infiniband/{device}/ports/1"
        physical = "5: LinkUp" if state.startswith("4") else "2: Polling"
        files = {"state": state, "phys_state": physical, "rate": rate, "link_layer": "InfiniBand"}
        for name, text in files.items():
            self.write(f"{port}/{name}", f"{text}\n")

    def port_counter(self, name: str, count: int, folder: str = "counters") -> None:
        self.write(f"sys/class/infiniband/mlx5_0/ports/1/{folder}/{name}", f"{count}\n")

    def ethernet(self, *, carrier: str = "1", name: str = "eth0", speed: str = "100000") -> None:
        for file, text in {"carrier": carrier, "operstate": "up", "speed": speed, "device/vendor": "0x15b3"}.items():
            self.write(f"sys/class/net/{name}/{file}", f"{text}\n")
