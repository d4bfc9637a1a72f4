"""`make setup`: the one locked environment in `.venv`, repaired or left alone as needed.

Standard library only: it runs on the system's python before anything is installed. An environment is trusted only if
its stamp shows that every step ended; without the stamp it is built again, since an installer that was killed half way
leaves packages that look installed and are not.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # this very line tells a user of an older one
    sys.exit("make setup: Muster needs Python 3.11 or newer; install one and run `make setup PYTHON=python3.11`.")

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.console_assets import AssetFolders, set_up_assets
from tools.git import set_up_hooks
from tools.torch_guard import read_plan, refusal

ROOT = Path(__file__).resolve().parent.parent
SETUP_EXTRAS = ("server", "worker", "agent", "embedded", "s3")
TORCH_CHOICES = ("auto", "cuda", "skip")
ASSETS_CHOICES = ("auto",)
# Relative on purpose: pip splits PIP_CONSTRAINT at spaces, and the checkout's path may hold some.
CONSTRAINTS = "constraints.txt"
# Errors only: pip warns once a package about an index folder that lacks it.
QUIET = ("--quiet", "--quiet")
# Each would move the installation, or its imports, out of our environment.
FOREIGN_VARIABLES = (
    "PIP_PREFIX",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_TARGET",
    "PIP_USER",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONPYCACHEPREFIX",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
)


class SetupError(Exception):
    """One sentence: the fault and what to do."""


@dataclass(frozen=True)
class Stamp:
    """Inputs of a finished environment."""

    packages: str
    torch_choice: str
    torch_outcome: str

    def satisfies(self, packages: str, requested_torch: str | None) -> bool:
        """Return whether the environment is as requested. An explicit TORCH=auto tries again what failed or was
        declined.
        """
        if self.packages != packages or requested_torch not in {None, self.torch_choice}:
            return False
        return requested_torch != "auto" or self.torch_outcome == "installed"

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.__dict__) + "\n")

    @classmethod
    def read(cls, path: Path) -> Stamp | None:
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Environment:
    root: Path
    home: Path

    @property
    def python(self) -> str:
        return str(self.home / "bin" / "python")

    @property
    def stamp_path(self) -> Path:
        return self.home / "muster-setup.json"

    def is_runnable(self) -> bool:
        """Return whether its interpreter still starts: a moved checkout or a removed python breaks it."""
        try:
            return subprocess.run([self.python, "-c", ""], check=False, capture_output=True).returncode == 0
        except OSError:
            return False


def clean_variables(*, locked: bool = True) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    kept["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    if locked:
        # The environment variables reach the build back end's own environment too; the option alone does not.
        kept["PIP_CONSTRAINT"] = kept["PIP_BUILD_CONSTRAINT"] = CONSTRAINTS
    return kept


def run(command: list[str], *, failure: str, cwd: Path, locked: bool = True) -> None:
    ended = subprocess.run(command, cwd=cwd, env=clean_variables(locked=locked), check=False)
    if ended.returncode != 0:
        raise SetupError(failure)


def project_table(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


def packages_digest(root: Path) -> str:
    """Return a hash that changes when another set of packages is needed, and not when a linter's rule changes."""
    table = project_table(root)
    wanted = [table.get("build-system"), table["project"], table.get("dependency-groups"), table["tool"].get("hatch")]
    parts = [json.dumps(wanted, sort_keys=True), (root / CONSTRAINTS).read_text(), sys.version, str(root)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def requirements(root: Path) -> list[str]:
    """Return the project with its extras, and its tools by name: older pips know no dependency groups."""
    developers: list[str] = project_table(root)["dependency-groups"]["dev"]
    return ["--editable", f".[{','.join(SETUP_EXTRAS)}]", *developers]


def create(environment: Environment) -> None:
    shutil.rmtree(environment.home, ignore_errors=True)
    run(
        [sys.executable, "-m", "venv", str(environment.home)],
        failure="make setup: could not create .venv; install python3's venv module (Debian: apt install python3-venv).",
        cwd=environment.root,
    )


def install_with_uv(environment: Environment) -> bool:
    """Return whether uv did it. If it is absent, or its own configuration prevents it, pip does."""
    uv = shutil.which("uv")
    if uv is None:
        return False
    command = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", environment.python]
    command += ["--constraint", CONSTRAINTS, "--build-constraint", CONSTRAINTS, *requirements(environment.root)]
    ended = subprocess.run(command, cwd=environment.root, env=clean_variables(), check=False)
    if ended.returncode != 0:
        print_line("uv could not install the packages; trying with pip")
    return ended.returncode == 0


def install_with_pip(environment: Environment, *, locked: bool = True) -> None:
    failure = (
        "make setup: pip could not install the packages (its reason stands above); "
        "check your pip configuration and run `make setup` again."
    )
    # Compiled afterwards instead, on every core: bytecode is a third of pip's time.
    command = [environment.python, "-m", "pip", "install", *QUIET, "--no-compile"]
    # The pip that comes with an older Python takes twice as long over the rest.
    for wanted in (["--upgrade", "pip"], requirements(environment.root)):
        run([*command, *wanted], failure=failure, cwd=environment.root, locked=locked)
    compile_bytecode(environment)


def compile_bytecode(environment: Environment) -> None:
    """Compile: every process then imports the stack twice as fast; a file that fails here could not have
    been imported.
    """
    command = [environment.python, "-m", "compileall", "-q", "-q", "-j", "0", str(environment.home / "lib")]
    subprocess.run(command, cwd=environment.root, env=clean_variables(), check=False)


def remove_unlocked(environment: Environment) -> None:
    """Remove what an earlier lock brought and this one does not name, so that the lock describes the environment."""
    pinned = {normalised(line.split("==")[0]) for line in (environment.root / CONSTRAINTS).read_text().splitlines()}
    code = "import importlib.metadata as m; print('\\n'.join(d.metadata['Name'] for d in m.distributions()))"
    listed = subprocess.run(
        [environment.python, "-I", "-c", code], check=True, capture_output=True, text=True, env=clean_variables()
    ).stdout.split()
    unlocked = [name for name in listed if normalised(name) not in pinned | {"pip", "setuptools", "muster"}]
    if unlocked:
        command = [environment.python, "-m", "pip", "uninstall", "--quiet", "--yes", *unlocked]
        run(command, failure="make setup: pip could not remove old packages; delete .venv.", cwd=environment.root)


def normalised(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def only_requirement(root: Path, extra: str) -> str:
    (requirement,) = project_table(root)["project"]["optional-dependencies"][extra]
    return str(requirement)


def install_torch(environment: Environment, choice: str) -> str:
    """Install torch and return the outcome: installed, skipped, declined (the CUDA build was not requested) or
    unavailable.

    Always by pip: uv does not see every place where pip's configuration may keep a CPU build.
    """
    if choice == "skip":
        return "skipped"
    requirement = only_requirement(environment.root, "train")
    pip = [environment.python, "-m", "pip", "install", *QUIET]
    if choice == "auto":
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            command = [*pip, "--dry-run", "--report", str(report), requirement]
            if subprocess.run(command, cwd=environment.root, env=clean_variables(), check=False).returncode != 0:
                print_line(f"{requirement} is not available here; everything but training workloads works without it")
                return "unavailable"
            plan = read_plan(json.loads(report.read_text()))
        if plan.is_cuda:
            print_line(refusal(plan))
            return "declined"
    failure = f"make setup: pip could not install {requirement}; run `TORCH=skip make setup` to do without it."
    run([*pip, "--no-compile", requirement], failure=failure, cwd=environment.root)
    install_without_torch(environment, pip)
    compile_bytecode(environment)
    return "installed"


def install_without_torch(environment: Environment, pip: list[str]) -> None:
    """Install Hugging Face's models, which one reference program trains and its tests need; all else works without
    them.
    """
    wanted: list[str] = project_table(environment.root)["project"]["optional-dependencies"]["huggingface"]
    command = [*pip, "--no-compile", *wanted]
    if subprocess.run(command, cwd=environment.root, env=clean_variables(), check=False).returncode != 0:
        print_line(f"{wanted[0]} is not available here; everything but examples/finetune_hf.py works without it")


def set_up(environment: Environment, requested_torch: str | None) -> None:
    """Bring the environment to what is requested; `asked_torch` None keeps the choice of the last set-up."""
    before = Stamp.read(environment.stamp_path)
    packages = packages_digest(environment.root)
    choice = requested_torch or (before.torch_choice if before else "auto")
    if before and before.satisfies(packages, requested_torch):
        return
    started = time.monotonic()
    if before is None or not environment.is_runnable():
        print_line(f"creating .venv with Python {sys.version.split()[0]}")
        before = None
        create(environment)
    environment.stamp_path.unlink(missing_ok=True)
    if before is None or before.packages != packages:
        print_line("installing the locked packages")
        if not install_with_uv(environment):
            install_with_pip(environment)
        remove_unlocked(environment)
    print_line(f"torch: {choice}")
    outcome = install_torch(environment, choice)
    Stamp(packages, choice, outcome).write(environment.stamp_path)
    print_line(f"the environment is ready after {time.monotonic() - started:.0f} s (torch: {outcome})")


def set_up_console(environment: Environment, *, is_requested: bool) -> None:
    """Fetch the console's scripts and fonts by npm; without access to its registry everything else works all
    the same.
    """
    told = set_up_assets(
        AssetFolders.of(environment.root, environment.home),
        environment.python,
        clean_variables(),
        only_requirement(environment.root, "npm"),
        is_requested=is_requested,
    )
    if told is not None:
        print_line(told)


def print_line(message: str) -> None:
    sys.stdout.write(f"make setup: {message}\n")
    sys.stdout.flush()


def main() -> int:
    asked = os.environ.get("TORCH") or None
    asked_assets = os.environ.get("ASSETS") or None
    for name, given, choices in (("TORCH", asked, TORCH_CHOICES), ("ASSETS", asked_assets, ASSETS_CHOICES)):
        if given is not None and given not in choices:
            print_line(f"{name}={given} is not a choice; give {' or '.join(choices)}.")
            return 2
    environment = Environment(root=ROOT, home=ROOT / ".venv")
    try:
        with (ROOT / "pyproject.toml").open() as lock:
            # Two set-ups at once would write into the same environment; the second waits and finds it done.
            fcntl.flock(lock, fcntl.LOCK_EX)
            set_up(environment, asked)
            set_up_console(environment, is_requested=asked_assets is not None)
        set_up_hooks(ROOT)
    except (SetupError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("make setup: interrupted; run it again and it starts over.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
