"""What `make setup` made is what the lock says, and a difference is reported in time."""

import importlib.metadata
import itertools
import tomllib
from pathlib import Path

import pytest

from tools.setup_environment import (
    SETUP_EXTRAS,
    Environment,
    Stamp,
    install_without_torch,
    normalised,
    packages_digest,
    requirements,
    set_up,
)

ROOT = Path(__file__).parent.parent.parent
# Come with the interpreter, and are no part of what we install.
FROM_THE_INTERPRETER = {"pip", "setuptools"}
OUR_PACKAGES = (
    "muster",
    "health",
    "scheduler",
    "simulator",
    "agents",
    "workers",
    "api",
    "console",
    "migrations",
)


def pins() -> dict[str, set[str]]:
    """Versions by package; several where platforms or interpreters differ."""
    pinned: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.split(";")[0].strip().split("==")
            pinned.setdefault(normalised(name), set()).add(version)
    return pinned


def test_every_installed_package_has_its_locked_version() -> None:
    pinned = pins()
    for distribution in importlib.metadata.distributions():
        name = normalised(distribution.metadata["Name"])
        if name in FROM_THE_INTERPRETER | {"muster"}:
            continue
        # A local build, such as 2.13.0+cpu, is the same version.
        assert distribution.version.split("+")[0] in pinned.get(name, set()), f"{name} is not locked"


def test_every_requirement_of_the_project_is_locked() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = table["project"]["optional-dependencies"]
    wanted = [*table["project"]["dependencies"], *itertools.chain(*extras.values()), *table["dependency-groups"]["dev"]]
    names = {normalised(requirement.split("[")[0].split(">")[0].split("=")[0]) for requirement in wanted}
    assert names <= pins().keys()


def test_the_lock_names_no_place() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert " @ " not in text


@pytest.mark.parametrize("package", OUR_PACKAGES)
def test_no_other_distribution_brings_a_package_of_our_name(package: str) -> None:
    """Our packages have plain names: a stranger's of the same name would be imported in their place, or ours in its."""
    assert set(importlib.metadata.packages_distributions().get(package, ["muster"])) == {"muster"}


def test_the_set_up_requests_the_extras_and_the_tools() -> None:
    wanted = requirements(ROOT)
    assert f".[{','.join(SETUP_EXTRAS)}]" in wanted
    assert any(requirement.startswith("pytest>") for requirement in wanted)


@pytest.mark.parametrize(("pip", "reported"), [("true", ""), ("false", "not available here; everything but")])
def test_what_cannot_have_transformers_gets_all_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pip: str, reported: str
) -> None:
    install_without_torch(Environment(root=ROOT, home=tmp_path), [pip])
    output = capsys.readouterr().out
    assert reported in output
    assert bool(output) is bool(reported)


def test_a_finished_environment_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / ".venv"
    home.mkdir()
    environment = Environment(root=ROOT, home=home)
    Stamp(packages_digest(ROOT), "skip", "skipped").write(environment.stamp_path)
    set_up(environment, None)
    set_up(environment, "skip")
    assert [path.name for path in home.iterdir()] == [environment.stamp_path.name]


@pytest.mark.parametrize(
    ("requested", "outcome", "is_enough"),
    [
        (None, "declined", True),
        ("auto", "declined", False),
        ("auto", "installed", True),
        ("cuda", "declined", False),
        ("skip", "declined", False),
    ],
)
def test_torch_is_reconsidered_only_when_requested(requested: str | None, outcome: str, *, is_enough: bool) -> None:
    assert Stamp("same", "auto", outcome).satisfies("same", requested) is is_enough


def test_other_packages_are_never_enough() -> None:
    assert not Stamp("old", "auto", "installed").satisfies("new", None)


def test_a_stamp_that_was_half_written_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stamp"
    path.write_text('{"packages": "x"')
    assert Stamp.read(path) is None
