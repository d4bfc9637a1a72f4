"""The tour's policy as a file for a benchmark's own stack; at a small size, GPUs are proved at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from muster.cli.host.up import TOUR_POLICY

QUICK: Final[Mapping[str, Any]] = {"probation_s": 0.2, "reclaimable_only_s": 0.1}
"""Values of `health.standing` without waits that a smallest size does not measure."""


def write_policy(folder: Path, *, is_quick: bool, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """Write the tour's policy with ``changes`` to its sections, and return the file."""
    policy = yaml.safe_load(TOUR_POLICY.read_text(encoding="utf-8"))
    for section, values in (changes or {}).items():
        policy[section] |= values
    if is_quick:
        policy["health"]["standing"] |= QUICK
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump(policy), encoding="utf-8")
    return path
