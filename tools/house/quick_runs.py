"""Times of ``make quick`` for each typical change, in a clone of the checkout (``python -m tools.house --quick``).

Each change is made in the clone, measured and undone. The clone uses this checkout's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.git import git
from tools.house.loop import QUICK_RUNS
from tools.typical_changes import TYPICAL_CHANGES, TypicalChange, apply

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT: Final = ".venv"


def record_quick_runs(root: Path) -> Mapping[str, Any]:
    """Store and return the time of each typical change. Raises GitError where git refuses."""
    with tempfile.TemporaryDirectory(prefix="muster-quick-") as folder:
        Path(folder).chmod(0o755)  # root's tests run PostgreSQL as another user, who has to enter the folder
        clone = Path(folder) / "clone"
        git(root, "clone", "--quiet", str(root), str(clone))
        (clone / ENVIRONMENT).symlink_to(root / ENVIRONMENT, target_is_directory=True)
        try:
            runs = {name: _measured(clone, change) for name, change in TYPICAL_CHANGES.items()}
        finally:
            # Otherwise the clone's mypy daemon keeps 2 GB for an hour.
            subprocess.run([str(clone / ENVIRONMENT / "bin" / "dmypy"), "stop"], cwd=clone, check=False)
    path = root / QUICK_RUNS
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")
    return runs


def _measured(clone: Path, change: TypicalChange) -> dict[str, Any]:
    apply(change, clone)
    began = time.monotonic()
    python = str(clone / ENVIRONMENT / "bin" / "python")
    run = subprocess.run([python, "-m", "tools.quick"], cwd=clone, check=False, capture_output=True, text=True)
    took_s = time.monotonic() - began
    if run.returncode != 0:
        sys.stderr.write(f"make quick failed with {', '.join(change.files)} changed:\n{run.stdout}{run.stderr}\n")
    revision = git(clone, "rev-parse", "HEAD").strip()
    git(clone, "checkout", "--quiet", "--", *change.files)
    return {
        "wall_s": round(took_s, 1),
        "exit_status": run.returncode,
        "revision": revision,
        "processors": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
    }
