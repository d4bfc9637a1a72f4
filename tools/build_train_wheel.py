"""Build of the wheel ``muster-train``: the runtime inside tenants' jobs, and nothing else.

    python -m tools.build_train_wheel dist

A tenant's image takes it, with ``muster-base`` (which owns ``muster/__init__.py``), together with any torch. It holds
nothing but ``muster/train``, and does not belong into an environment that has all of Muster.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.wheels import ROOT, Wheel, base_wheel

SOURCES = ROOT / "muster" / "train"
REQUIRES_BASE = "muster-base>=0.1"  # any: nothing of it but the package itself is used
REQUIRES_TORCH = "torch>=2.13"  # older ones are not tested
WHEEL_EXTRAS = {"s3": "boto3>=1.40,<2", "encryption": "cryptography>=42"}


def train_wheel() -> Wheel:
    files = [*SOURCES.rglob("*.py"), *SOURCES.rglob("*.pyi")]
    return Wheel(
        "muster-train",
        "Exact resume, agreed stops and verified checkpoints for torch jobs under Muster.",
        [str(path.relative_to(ROOT)) for path in files],
        (REQUIRES_BASE, REQUIRES_TORCH),
        WHEEL_EXTRAS,
    )


def build(folder: Path) -> Path:
    """Build the wheel and return its path."""
    return train_wheel().write(folder)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the wheels muster-base and muster-train.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("dist"), help="where they go (default: dist)")
    folder = parser.parse_args(words).folder
    for wheel in (base_wheel(), train_wheel()):
        sys.stdout.write(f"{wheel.write(folder)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
