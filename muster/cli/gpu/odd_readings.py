"""Readings in records that are no numbers: set aside as a server does it, counted, and reported at the end."""

from dataclasses import dataclass, field
from typing import Any, Final

from muster.cli.framework.output import json_of, print_line
from muster.wire.readable import set_aside

LINES_NAMED: Final = 20


@dataclass(slots=True)
class OddReadings:
    num_samples: int = 0
    num_values: int = 0
    lines: list[int] = field(default_factory=list)

    def take_out_of(self, record: Any, line: int) -> bool:
        """Remove them from ``record``, which is changed, and return whether nothing of it is left."""
        if not isinstance(record, dict):
            return False
        is_sample = record.get("type") == "sample"
        found = set_aside({"events": [record]} if is_sample or "kind" in record else record)
        if found is None:
            return False
        gpus, num_values = found
        self.num_samples += 1 if is_sample else len(gpus)
        self.num_values += 0 if is_sample else num_values
        self.lines.append(line)
        return is_sample

    def report(self, *, as_json: bool) -> None:
        """Report the counts, if there were any."""
        if not self.lines:
            return
        named = self.lines[:LINES_NAMED]
        if as_json:
            counts = {"samples": self.num_samples, "values": self.num_values, "num_lines": len(self.lines)}
            print_line(json_of({"type": "set_aside", **counts, "lines": named}))
            return
        lines = ", ".join(map(str, named)) + (", …" if len(self.lines) > len(named) else "")
        values = f" and {self.num_values} values of events" if self.num_values else ""
        print_line(f"set aside, since they are no numbers: {self.num_samples} samples{values} (lines {lines})")
