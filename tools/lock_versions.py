"""Writer of constraints.txt from the bounds in pyproject.toml (`make lock`).

uv resolves for every platform and interpreter at once, which pip cannot; so only this tool needs uv. Locked versions
stay if the bounds still allow them, unless UPGRADE=1 requests the newest.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
OPTIONS = ("--universal", "--python-version", "3.11", "--no-header", "--no-annotate", "--no-emit-index-url", "--quiet")


def resolve(uv: str, *sources: str, output: Path) -> list[str]:
    upgrade = ["--upgrade"] if os.environ.get("UPGRADE") else []
    command = [uv, "pip", "compile", *OPTIONS, *upgrade, "--output-file", str(output), *sources]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return [line for line in output.read_text().splitlines() if "==" in line and not line.startswith("#")]


def main() -> int:
    uv = shutil.which("uv")
    if uv is None:
        sys.stderr.write("make lock: uv was not found; install it (`pip install uv`) and run `make lock` again.\n")
        return 1
    heading = [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("#")]
    back_end = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as folder:
        output, requirements = Path(folder) / "output.txt", Path(folder) / "back_end.in"
        shutil.copy(CONSTRAINTS, output)
        project = resolve(uv, "--all-extras", "--group", "dev", "pyproject.toml", output=output)
        requirements.write_text("\n".join(["pip", *back_end]) + "\n")
        shutil.copy(CONSTRAINTS, output)
        building = resolve(uv, str(requirements), output=output)
    CONSTRAINTS.write_text("\n".join([*heading, *sorted({*project, *building})]) + "\n")
    sys.stdout.write(f"make lock: {len(project)} versions locked\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
