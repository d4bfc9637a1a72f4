"""A training whose first attempt goes slowly, so that an action during its run finds it running."""

from pathlib import Path

SLOW_AT_FIRST = """
import os, runpy, sys
attempts = MARKS
os.makedirs(os.path.join(attempts, os.environ["MUSTER_ATTEMPT_ID"]), exist_ok=True)
pace = "1.0" if len(os.listdir(attempts)) == 1 else "0.05"
sys.argv = [SCRIPT, *sys.argv[1:], "--step-sleep", pace]
runpy.run_path(SCRIPT, run_name="__main__")
"""
"""The example; its first attempt takes long enough to be broken on the slowest machine."""


def slow_at_first(folder: Path) -> str:
    """The script's path."""
    path = folder / "slow_at_first.py"
    script = Path(__file__).resolve().parents[1] / "examples" / "train_transformer.py"
    source = SLOW_AT_FIRST.replace("MARKS", repr(str(folder / "attempts-seen"))).replace("SCRIPT", repr(str(script)))
    path.write_text(source, encoding="utf-8")
    return str(path)
