"""Build of the wheel ``muster-train``: the runtime inside tenants' jobs, and nothing else.

    python -m tools.build_train_wheel dist

A tenant's image takes it together with any torch. ``muster`` is a namespace in it, without a file of its own, and it
holds nothing but ``muster/train``; so it does not belong into an environment that has all of Muster. The same sources
give the same bytes. A wheel is a zip with three small files of metadata, so no build tool is needed.
"""

import base64
import hashlib
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "muster" / "train"
EPOCH = (1980, 1, 1, 0, 0, 0)
REQUIRES_PYTHON = ">=3.11"
REQUIRES_TORCH = "torch>=2.13"  # older ones are not tested
WHEEL_EXTRAS = {"s3": "boto3>=1.40,<2", "encryption": "cryptography>=42"}


def build(folder: Path) -> Path:
    """Build the wheel and return its path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = f"muster_train-{project['version']}"
    metadata = f"{name}.dist-info"
    paths = sorted([*SOURCES.rglob("*.py"), *SOURCES.rglob("*.pyi")])
    contents = {f"muster/train/{path.relative_to(SOURCES)}": path.read_bytes() for path in paths}
    contents[f"{metadata}/METADATA"] = (
        "Metadata-Version: 2.1\n"
        "Name: muster-train\n"
        f"Version: {project['version']}\n"
        "Summary: Exact resume, agreed stops and verified checkpoints for torch jobs under Muster.\n"
        f"License: {project['license']}\n"
        f"Requires-Python: {REQUIRES_PYTHON}\n"
        f"Requires-Dist: {REQUIRES_TORCH}\n"
        + "".join(
            f"Provides-Extra: {extra}\nRequires-Dist: {needed}; extra == '{extra}'\n"
            for extra, needed in WHEEL_EXTRAS.items()
        )
    ).encode()
    contents[f"{metadata}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: muster\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{metadata}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = f"{metadata}/RECORD"
    contents[record] = "".join(
        [*(_record(path, content) for path, content in contents.items()), f"{record},,\n"]
    ).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in contents.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return wheel


def _record(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


def main() -> int:
    wheel = build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
    sys.stdout.write(f"{wheel}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
