"""The wheels that users install: the client alone, the runtime alone, both, and either after the other is removed."""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from muster.cli.framework.branches import BRANCHES
from muster.cli.framework.installed import Part
from tests.installed_wheels import Place
from tools import build_client_wheel, build_train_wheel
from tools.import_graph import read_graph
from tools.import_statements import Kind
from tools.wheels import BASE_FILES, Wheel, base_wheel, project_requirements

SERVERS: Final = (
    "fastapi",
    "sqlalchemy",
    "celery",
    "torch",
    "numpy",
    "uvicorn",
    "psycopg",
    "alembic",
    "control",
    "api",
)
FAR_IMPORTS: Final = {"audit verify": ("muster.cli.admin.audit", {"control.core.sealer", "control.core.unit_of_work"})}
"""The one command of the client that reaches beyond it, and hides itself there."""
MFU: Final = ("mfu", "--model", "H200", "--tokens-per-s", "13000", "--params", "7.5e9", "--layers", "32")
MFU_SHAPE: Final = ("--heads", "32", "--head-dim", "128", "--sequence", "8192")
ELSEWHERE: Final = """
import asyncio, ctypes, getpass, httpx, importlib.abc, os, pkgutil, signal, subprocess, sys, tempfile, uuid, zipfile
POSIX = {"fcntl", "termios", "tty", "pty", "pwd", "grp", "resource", "syslog", "posix_ipc"}
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in POSIX:
            raise ModuleNotFoundError(f"no {name} on this system", name=name)
sys.meta_path.insert(0, Blocked())
for name in POSIX:
    sys.modules.pop(name, None)
for name in ("getuid", "geteuid", "getgid", "fork", "fchmod", "chown", "register_at_fork", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGWINCH", "alarm", "setitimer", "pthread_sigmask"):
    delattr(signal, name)
import muster
names = [each.name for each in pkgutil.walk_packages(muster.__path__, "muster.") if each.name not in sys.argv[1:]]
assert "muster.cli.job.job_submit" in names and "muster.client.async_rest" in names
for name in names:
    if name != "muster.__main__":
        importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every wheel that a control plane serves, by its name."""
    built = build_client_wheel.build_served(tmp_path_factory.mktemp("wheels"))
    return {path.name.partition("-")[0]: path for path in built}


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Place:
    """An environment with the client, for tests that leave it as it is."""
    return with_client(tmp_path_factory.mktemp("client"), wheels)


@pytest.fixture
def own_client(tmp_path: Path, wheels: dict[str, Path]) -> Place:
    """One with the client, of which a test may remove it."""
    return with_client(tmp_path, wheels)


def place_in(folder: Path) -> Place:
    """Make an environment with the requirements of the client, no package of Muster, and no torch."""
    place = Place.make(folder / "venv")
    place.link(*(each for each in build_client_wheel.client_wheel().requires if not each.startswith("muster")))
    return place


def with_client(folder: Path, wheels: dict[str, Path]) -> Place:
    place = place_in(folder)
    place.install(wheels["muster_base"], wheels["muster_client"])
    return place


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_same_sources_give_the_same_wheels(tmp_path: Path) -> None:
    first, second = (build_client_wheel.build_served(tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_build_leaves_no_wheel_of_another_version(tmp_path: Path) -> None:
    old = tmp_path / "muster_client-0.0.9-py3-none-any.whl"
    old.touch()
    built = build_client_wheel.build_served(tmp_path)
    assert set(tmp_path.iterdir()) == set(built)


@pytest.mark.parametrize("build", [build_client_wheel, build_train_wheel])
@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["--nothing"], 2), (["dist", "--all", "more"], 2)])
def test_an_option_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: ModuleType, words: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        build.main(words)
    assert ended.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_each_file_has_one_owner_and_lies_below_the_package_muster(wheels: dict[str, Path]) -> None:
    owned = [files_of(path) for path in wheels.values()]
    assert len(owned) == 3
    assert sum(map(len, owned)) == len(set().union(*owned))
    assert files_of(wheels["muster_base"]) == set(BASE_FILES)
    assert {name.split("/")[0] for name in set().union(*owned)} == {"muster"}


def test_its_commands_reach_no_part_of_a_server_but_where_it_is_known() -> None:
    graph = read_graph()
    modules = build_client_wheel.reached(graph)
    far = {
        (one.importer, one.imported)
        for one in graph.imports
        if one.kind in {Kind.EAGER, Kind.LAZY}
        and one.importer in modules
        and not one.on_the_way
        and not build_client_wheel.is_client(one.imported)
        and not one.imported.startswith("muster.train")
    }
    known = {module for module, _ in FAR_IMPORTS.values()}
    assert {importer for importer, _ in far} == known
    for module, targets in FAR_IMPORTS.values():
        assert {imported for importer, imported in far if importer == module} >= targets


def test_pip_finds_all_that_it_requires_and_nothing_of_a_server(client: Place) -> None:
    assert "No broken requirements" in client.pip("check")
    proof = f"import importlib.util as u; print([name for name in {SERVERS!r} if u.find_spec(name)])"
    assert client.run("python", "-c", proof).stdout.strip() == "[]"


def test_its_help_lists_what_works_and_each_of_it_does(client: Place) -> None:
    listed = set(
        re.findall(r"^ ([a-z][a-z-]*)  ", client.run("muster", "--help").stdout.replace("│", ""), re.MULTILINE)
    )
    assert listed == {name for name, branch in BRANCHES.items() if branch.needs is None}
    assert {"job", "login", "doctor"} <= listed
    names = "'" + "', '".join(sorted(listed)) + "'"
    each = f"""
import contextlib, io, sys
from muster.cli.framework.app import run
for name in [{names}]:
    sys.argv = ["muster", name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert run() == 0, name
    assert "Usage: muster " + name in shown.getvalue(), name
"""
    done = client.run("python", "-c", each)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(name for name, branch in BRANCHES.items() if branch.needs is not None))
def test_a_command_that_needs_more_is_refused_with_what_to_do(client: Place, name: str) -> None:
    answer = client.run("muster", name)
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    words = " ".join(re.sub(r"[│╭╮╰╯─]", " ", answer.stderr).split())
    what = "muster-train" if BRANCHES[name].needs is Part.TRAIN else "the whole of Muster"
    assert f"`muster {name}` needs" in words
    assert what in words


def test_a_function_that_needs_more_is_refused_in_the_same_way(client: Place) -> None:
    answer = client.run("muster", "audit", "verify", MUSTER_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: this command needs the whole of Muster")
    assert "verify" not in client.run("muster", "audit", "--help").stdout.partition("Commands")[2]


def test_it_imports_without_what_only_linux_and_macos_have(client: Place) -> None:
    rooms = [branch.room.partition(":")[0] for branch in BRANCHES.values() if branch.needs is Part.TRAIN] + [
        "muster.cli.job.checkpoint_folders",
        "muster.cli.job.checkpoint_texts",
        "muster.cli.job.checkpoint_trial",
    ]
    done = client.run("python", "-c", ELSEWHERE, *rooms)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 100


def test_its_help_imports_nothing_heavy(client: Place) -> None:
    heavy = ("httpx", "pydantic", "yaml", "numpy", "muster.client", "muster.domain", "muster.documents")
    proof = f"""
import contextlib, io, sys
sys.argv = ["muster", "--help"]
from muster.cli.framework.app import run
with contextlib.redirect_stdout(io.StringIO()):
    run()
print([name for name in {heavy!r} if name in sys.modules])
"""
    assert client.run("python", "-c", proof).stdout.strip() == "[]"


@pytest.mark.parametrize("removed", ["muster-client", "muster-train"])
def test_of_both_either_is_removed_and_the_other_works(
    own_client: Place, wheels: dict[str, Path], removed: str
) -> None:
    client = own_client
    client.install(wheels["muster_train"])
    assert client.run("muster", *MFU, *MFU_SHAPE).returncode == 0, "the runtime's own command"
    shown = client.run("muster", "--help")
    assert ("ckpt" in shown.stdout, shown.stderr) == (True, "")
    client.pip("uninstall", "--yes", "--quiet", removed)
    runtime = client.run("python", "-c", "import muster.train.report.flops as f; print(f.__file__)")
    command = client.folder / "bin" / "muster"
    if removed == "muster-client":
        assert runtime.stdout.strip().endswith("muster/train/report/flops.py"), runtime.stderr
        assert not command.exists()
        assert not (client.libraries / "muster" / "cli").exists()
    else:
        assert runtime.returncode != 0
        assert client.run("muster", "job", "--help").returncode == 0
        assert "needs the runtime muster-train" in " ".join(client.run("muster", "ckpt", "ls", "folder").stderr.split())


@pytest.fixture
def whole() -> Wheel:
    """The whole distribution as far as it matters here: it holds the files of the small wheels itself."""
    files = {*build_client_wheel.client_files(), *BASE_FILES, "muster/db/__init__.py"}
    return Wheel("muster", "All of it.", sorted(files), project_requirements(), commands={"muster": "muster.cli:main"})


@pytest.mark.parametrize("order", [lambda pair: pair, reversed], ids=["client second", "client first"])
def test_next_to_the_whole_distribution_each_command_warns(
    wheels: dict[str, Path], whole: Wheel, tmp_path: Path, order: Callable[..., list[list[Path]]]
) -> None:
    place = place_in(tmp_path)
    for installed in order([[whole.write(tmp_path)], [wheels["muster_base"], wheels["muster_client"]]]):
        place.install(*installed)
    answer = place.run("muster", "exit-codes")
    assert answer.returncode == 0
    assert "warning: muster and muster-base, muster-client are installed in one environment" in answer.stderr
    assert "`pip uninstall muster-base muster-client`" in answer.stderr


def test_the_base_belongs_to_both(wheels: dict[str, Path]) -> None:
    assert [each for each in build_train_wheel.train_wheel().requires if each.startswith("muster-base")]
    assert [each for each in build_client_wheel.client_wheel().requires if each.startswith("muster-base==")]
    assert base_wheel().requires == ()
