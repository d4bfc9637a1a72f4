"""Calls of uv, the installer, and its answers as faults. It has no configuration but ours."""

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from muster.environments.faults import BuildFaultError, EnvironmentFaultError, IndexFaultError
from muster.environments.lock_file import Lock
from muster.environments.recipe import PackageIndex, Recipe

_REQUEST_TIMEOUT_S: Final = "30"
_UNREACHABLE: Final = (
    "request failed after",
    "failed to fetch:",
    "error sending request",
    "http status server error",
    "http status client error (429",
    "operation timed out",
)
"""How uv says that the index did not serve; it retried. A missing package has other words."""
_KILLED: Final = "(signal: 9"
"""How uv says that the build of a source distribution was killed, as by a limit of the job's memory."""
_HOST_FULL: Final = ("no space left on device", "disk quota exceeded")
_PROXY_VARIABLES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
_SHOWN_LINES: Final = 12
_MOST_OUTPUT_BYTES: Final = 1 << 20


def uv_path() -> Path:
    """Return uv's binary. Raises EnvironmentFaultError: this host has none."""
    try:
        import uv  # noqa: PLC0415  # only hosts that build have it
    except ImportError:
        raise EnvironmentFaultError(
            "this host has no uv, which builds environments; install `muster[worker]`"
        ) from None
    return Path(uv.find_uv_bin())


class Installer:
    """uv in a folder of its own: ``scratch`` is its home, ``cache`` may be kept for one tenant."""

    def __init__(self, scratch: Path, cache: Path, index: PackageIndex, *, within_s: float, log: IO[bytes]) -> None:
        self._scratch = scratch
        self._cache = cache
        self._index = index
        self._within_s = within_s
        self._log = log
        self._uv = uv_path()

    def export(self, project: Path, recipe: Recipe) -> str:
        """Return a ``uv.lock`` as requirements with hashes. Nothing is fetched, and nothing of the project is run.

        Raises:
            BuildFaultError: the lock does not fit its ``pyproject.toml``.
        """
        chosen = [f"--extra={extra}" for extra in recipe.extras] + [f"--group={group}" for group in recipe.groups]
        fixed = ["--frozen", "--offline", "--no-emit-project", "--no-default-groups", "--no-header", "--no-annotate"]
        path = self._scratch / "exported.txt"
        self._run(["export", *fixed, *chosen, f"--project={project}", f"--output-file={path}"], None)
        return path.read_text()

    def make_venv(self, target: Path, python: str) -> None:
        """Make a virtual environment whose scripts work in any place."""
        self._run(["venv", "--relocatable", "--no-project", f"--python={python}", str(target)], None)

    def install(self, venv: Path, requirements: Path, recipe: Recipe, lock: Lock) -> None:
        """Install exactly the requirements, each file by its hash.

        Raises:
            BuildFaultError: a hash is wrong, a package or wheel is not there, or a dependency is not in the lock.
            IndexFaultError: the index does not answer, or the installer was ended.
            EnvironmentFaultError: the operator names neither index nor wheelhouse, the wheelhouse is not here, or the
                host's disk is full.
        """
        rules = ["--require-hashes", f"--python={venv / 'bin' / 'python'}", "--link-mode=hardlink"]
        if not recipe.allows_source:
            rules.append("--only-binary=:all:")
        if recipe.from_host:
            rules.append("--no-deps")
        self._run(["pip", "install", *rules, *self._sources(), f"--requirements={requirements}"], lock)

    def _sources(self) -> list[str]:
        url, wheelhouse = self._index.url, self._index.wheelhouse
        if url is None and wheelhouse is None:
            raise EnvironmentFaultError(
                "the operator of this fleet names no package index; ask for one, or use an image or the host's Python"
            )
        if wheelhouse is not None and not os.access(wheelhouse, os.R_OK | os.X_OK):
            raise EnvironmentFaultError(f"the wheelhouse {wheelhouse} of this host is missing, or closed to its builds")
        found = ["--no-index"] if url is None else [f"--index-url={url}"]
        return found if wheelhouse is None else [*found, f"--find-links={wheelhouse}"]

    def _run(self, words: Sequence[str], lock: Lock | None) -> None:
        """Run uv to its end, in a process group that is killed after its time."""
        command = [str(self._uv), *words, "--no-config", "--no-python-downloads", "--color=never", "--no-progress"]
        self._log.write(f"$ uv {' '.join(words)}\n".encode())
        self._log.flush()
        began_at = self._log.tell()
        process = subprocess.Popen(  # noqa: S603  # uv's binary, and words of our own or behind an equals sign
            command,
            env=self._environment(),
            cwd=self._scratch,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=self._within_s)
        except subprocess.TimeoutExpired:
            raise IndexFaultError(f"the environment was not built within {self._within_s:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code < 0:
            raise IndexFaultError(f"the installer was ended by signal {-code}, as by a limit of the job's memory")
        if code != 0:
            raise fault_of(_output_since(self._log, began_at), lock)

    def _environment(self) -> Mapping[str, str]:
        """Return its whole environment: without our own variables, so that no token or setting reaches a build."""
        certificate = {"SSL_CERT_FILE": self._index.certificate} if self._index.certificate else {}
        proxy = self._index.proxy
        by_proxy = {} if proxy is None else dict.fromkeys(_PROXY_VARIABLES, proxy)
        return {
            "HOME": str(self._scratch),
            "TMPDIR": str(self._scratch),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "UV_CACHE_DIR": str(self._cache),
            "UV_HTTP_RETRIES": str(self._index.num_retries),
            "UV_HTTP_TIMEOUT": _REQUEST_TIMEOUT_S,
            **certificate,
            **by_proxy,
        }


def fault_of(output: str, lock: Lock | None) -> EnvironmentFaultError:
    """Return what uv's output means, with the line of the lock that it is about."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    at = next((at for at, line in enumerate(lines) if line.lower().startswith("error:")), max(0, len(lines) - 1))
    words = " ".join(line.removeprefix("error: ").removeprefix("cause: ") for line in lines[at : at + _SHOWN_LINES])
    lower = words.lower()
    if any(mark in lower for mark in _HOST_FULL):
        return EnvironmentFaultError(f"the host's disk is full: {words}")
    if any(mark in lower for mark in _UNREACHABLE):
        return IndexFaultError(f"the package index does not serve: {words}")
    if _KILLED in lower:
        return IndexFaultError(f"the build was killed: {words}")
    line = None if lock is None else _line_in(words, (one.name for one in lock.packages), lock)
    where = "" if line is None else f"line {line} of the lock: "
    return BuildFaultError(f"{where}{words or 'uv ended without a word'}", line=line)


def _line_in(words: str, names: Iterable[str], lock: Lock) -> int | None:
    """Return the line of the first package that the text names."""
    plain = "".join(letter if letter.isalnum() or letter in "-_." else " " for letter in words.replace("==", " "))
    told = [word.strip(".").lower().replace("_", "-") for word in plain.split()]
    known = set(names)
    return next((lock.line_of(word) for word in told if word in known), None)


def _output_since(log: IO[bytes], began_at: int) -> str:
    end = log.seek(0, os.SEEK_END)
    log.seek(max(began_at, end - _MOST_OUTPUT_BYTES))
    return log.read().decode(errors="replace")
