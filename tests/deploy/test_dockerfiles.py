"""The Dockerfiles, so far as they can be judged without an engine: a linter, and what they copy, install and run."""

import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.compose_file import ROOT
from tests.deploy.dockerfile import Stage, read_dockerfile

FILES: Final = sorted((ROOT / "deploy").glob("*.Dockerfile"))
BIN: Final = Path(sys.executable).parent
EACH: Final = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def ended(*command: str | Path) -> str:
    """Return its complaint; '' where it ended well."""
    answer = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=ROOT)
    return "" if answer.returncode == 0 else answer.stdout + answer.stderr


def copied(stages: list[Stage]) -> list[str]:
    return [source for stage in stages for copy in stage.copies if copy.stage is None for source in copy.sources]


@EACH
def test_the_linter_has_nothing_against_it(path: Path) -> None:
    assert ended(BIN / "hadolint", "--failure-threshold", "style", path) == ""


def test_nor_has_the_shells_linter_against_the_scripts() -> None:
    assert ended(BIN / "shellcheck", *sorted((ROOT / "deploy" / "compose").glob("*.sh"))) == ""


@EACH
def test_everything_that_is_copied_exists_and_reaches_the_builder(path: Path) -> None:
    for source in copied(read_dockerfile(path)):
        assert (ROOT / source).exists(), source
        assert is_sent(source), f"{source} is kept back by .dockerignore"


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".env",
        ".venv/bin/python",
        ".muster/secret.key",
        "tests/conftest.py",
        "deploy/compose/.env",
        "console/static/vendor/htmx.min.js",
        "policy/x.key",
        "muster/__pycache__/x.pyc",
        "shared",
    ],
)
def test_what_must_not_be_in_an_image_never_reaches_the_builder(path: str) -> None:
    assert not is_sent(path)


def is_sent(path: str) -> bool:
    """By .dockerignore: the last line that fits decides, and a folder's line counts for what is in it."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        rule = line.strip()
        if rule and not rule.startswith("#"):
            is_kept, pattern = rule.startswith("!"), rule.lstrip("!")
            if _fits(path, pattern):
                sent = is_kept
    return sent


def _fits(path: str, pattern: str) -> bool:
    parts = path.split("/")
    above = ["/".join(parts[: number + 1]) for number in range(len(parts))]
    if pattern.startswith("**/"):
        return any(fnmatch(part, pattern[3:]) for part in parts)
    return any(fnmatch(each, pattern) and each.count("/") == pattern.count("/") for each in above)


@EACH
def test_every_package_of_the_project_is_in_the_image(path: Path) -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(packages) <= set(copied(read_dockerfile(path)))


@EACH
def test_everything_that_is_installed_is_locked(path: Path) -> None:
    scripts = " && ".join(script for stage in read_dockerfile(path) for script in stage.of("RUN"))
    installs = [part for part in re.split(r"&&|;", scripts) if "pip install" in part]
    assert installs
    for part in installs:
        assert "--constraint constraints.txt" in part or "PIP_CONSTRAINT=constraints.txt" in part, part


def test_torch_is_the_projects_and_only_hosts_have_it() -> None:
    (wanted,) = PROJECT["project"]["optional-dependencies"]["train"]
    host, control = ((ROOT / f"deploy/{name}.Dockerfile").read_text() for name in ("host", "control"))
    assert f" {wanted}$" in host.replace("${", "$")
    assert "[server]" in control
    assert not re.search(r"^[^#]*torch", control, re.MULTILINE)


@EACH
def test_none_is_root_in_what_is_left(path: Path) -> None:
    final = read_dockerfile(path)[-1]
    assert final.of("USER") == ["10001:10001"]
    assert final.of("ENTRYPOINT") == ['["muster"]']
    assert next(copy.stage for copy in final.copies) == "build"
    assert not [script for script in final.of("RUN") if "pip" in script]


@EACH
def test_bases_are_pinned_and_the_same(path: Path) -> None:
    bases = {stage.base for stage in read_dockerfile(path)}
    assert bases == {"python:3.11.14-slim-bookworm"}


@EACH
def test_the_image_states_the_projects_version(path: Path) -> None:
    labels = dict(word.split("=", 1) for word in shlex.split(" ".join(read_dockerfile(path)[-1].of("LABEL"))))
    assert labels["org.opencontainers.image.version"] == PROJECT["project"]["version"]
