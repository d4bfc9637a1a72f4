"""Paths of the datasets that the job names: ``MUSTER_DATASETS``, as the control plane sets it for the job's
programs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "MUSTER_DATASETS"


def dataset_path(name: str) -> Path:
    """Return a dataset's path. Raises ValueError, with the known names, if the job names no such dataset."""
    paths = _paths()
    if name not in paths:
        known = ", ".join(sorted(paths)) or "none"
        raise ValueError(f"the job names no dataset {name!r}; it names {known}: `--dataset {name}=PATH`")
    return Path(str(paths[name]))


def _paths() -> dict[str, Any]:
    try:
        return dict(json.loads(os.environ.get(VARIABLE) or "{}"))
    except (ValueError, TypeError):
        raise ValueError(f"{VARIABLE} must be a JSON object of names and paths") from None
