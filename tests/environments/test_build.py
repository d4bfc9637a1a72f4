"""Environments are built by the real installer from wheels on this machine, and run by this machine's Python."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.environments.assemble import Interpreter, ask_interpreter, assemble, check_host_packages
from muster.environments.build import Built, build
from muster.environments.faults import BuildFaultError, EnvironmentFaultError, IndexFaultError, LockFaultError
from muster.environments.lock_file import Lock, LockedPackage, LockKind
from muster.environments.recipe import PackageIndex, Recipe, environment_key
from tests.environments.wheels import locked, make_wheel, served_index, source_lock

REQUIREMENTS = Recipe("requirements.txt")
NOWHERE = "http://127.0.0.1:9/simple"


def built(tmp_path: Path, text: str, index: PackageIndex, recipe: Recipe = REQUIREMENTS, name: str = "built") -> Built:
    """Build from a requirements file with ``text`` into ``tmp_path / name``."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    if text:
        (work / recipe.lock).write_text(text)
    return build(
        recipe,
        work,
        tmp_path / name,
        python=sys.executable,
        index=index,
        cache=tmp_path / "cache",
        log=tmp_path / "build.log",
    )


def house(tmp_path: Path) -> PackageIndex:
    return PackageIndex(wheelhouse=str(tmp_path / "house"))


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    return ask_interpreter(sys.executable, with_versions=True)


def copied(content: Path) -> Callable[[Path], None]:
    """Return what fills an environment with the files of a folder."""

    def fill(draft: Path) -> None:
        shutil.copytree(content, draft, symlinks=True, dirs_exist_ok=True)

    return fill


def ran(*command: str | Path, variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def assert_is_compiled(venv: Path, name: str) -> None:
    """Check that a program imports the stored bytecode, and that its code knows the environment's own path."""
    code = f"import {name}; print({name}.main.__code__.co_filename)"
    command = [str(venv / "bin" / "python"), "-v", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [module] = venv.glob(f"lib/*/site-packages/{name}/__init__.py")
    assert f".pyc matches {module}" in done.stderr, "each start would compile"
    assert done.stdout == f"{module}\n"


def test_a_built_environment_runs_in_any_place_and_no_job_can_write_it(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    wheels = (
        make_wheel(tmp_path / "house", "alpha", command="say-alpha", requires=("beta>=1",)),
        make_wheel(tmp_path / "house", "beta", "1.5"),
    )
    found = built(tmp_path, locked(*wheels), house(tmp_path))
    assert (found.num_installed, found.num_from_host) == (2, 0)
    content = tmp_path / "built"
    paths = {path.relative_to(content).as_posix() for path in content.rglob("*") if not path.is_dir()}
    assert {path for path in paths if path.startswith("bin/")} == {"bin/say-alpha"}
    here = str(tmp_path).encode()  # also the bytecode's
    assert not [path for path in paths if here in (content / path).read_bytes()], "it names a path of its builder"

    venv = tmp_path / "elsewhere" / "venv"
    venv.parent.mkdir()
    assemble(copied(content), venv, interpreter, has_host_packages=False)
    assert ran(venv / "bin" / "say-alpha", variables={"PATH": "/usr/bin:/bin"}) == "alpha 1.0"
    assert ran(venv / "bin" / "python", "-c", "import beta, sys; print(beta.VERSION, sys.prefix)") == f"1.5 {venv}"
    assert ran(venv / "bin" / "python", "-c", "import beta; print(beta.__cached__)").startswith(str(venv))
    assert_is_compiled(venv, "beta")
    assert not any(path.stat().st_mode & 0o022 for path in venv.rglob("*") if path.is_dir())


def test_two_builds_of_one_lock_have_the_same_bytes(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "house", "alpha", command="say-alpha")
    for name in ("one", "two"):
        built(tmp_path, locked(wheel), house(tmp_path), name=name)

    def content(name: str) -> dict[str, bytes]:
        root = tmp_path / name
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    assert content("one") == content("two")


def test_packages_come_from_the_operators_index_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "wheels", "alpha")
    for name in ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, NOWHERE)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "uv.toml").write_text(f"index-url = '{NOWHERE}'\n")
    with served_index(tmp_path / "index", wheel) as (url, asked):
        built(tmp_path, locked(wheel), PackageIndex(url=url))
    assert set(asked) == {"/simple/alpha/", f"/simple/alpha/{wheel.name}"}


def test_a_uv_lock_is_built_with_its_chosen_extras(tmp_path: Path) -> None:
    alpha, beta = (make_wheel(tmp_path / "wheels", name) for name in ("alpha", "beta"))
    project = "[project]\nname = 'job'\nversion = '0'\nrequires-python = '>=3.11'\ndependencies = ['alpha']\n"
    work = tmp_path / "work"
    work.mkdir()
    (work / "pyproject.toml").write_text(f"{project}[project.optional-dependencies]\nmore = ['beta']\n")
    with served_index(tmp_path / "index", alpha, beta) as (url, _):
        uv = Path(__import__("uv").find_uv_bin())
        variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_INDEX_URL": url}
        ran(uv, "lock", "--project", work, "--python", sys.executable, variables=variables)
        for extras, number in (((), 1), (("more",), 2)):
            found = built(tmp_path, "", PackageIndex(url=url), Recipe("uv.lock", extras=extras), f"with-{number}")
            assert found.lock.kind is LockKind.UV
            assert found.num_installed == number
        with pytest.raises(BuildFaultError, match="nothing"):
            built(tmp_path, "", PackageIndex(url=url), Recipe("uv.lock", extras=("nothing",)))


def refusals(tmp_path: Path) -> dict[str, tuple[str, str]]:
    """Return the lines of a lock that cannot be built, with a part of the words, by case."""
    good = make_wheel(tmp_path / "house", "good")
    needy = make_wheel(tmp_path / "house", "needy", requires=("good",))
    other = make_wheel(tmp_path / "house", "other", tag="cp27-cp27m-win32")
    return {
        "wrong hash": (locked(good).replace("sha256:", "sha256:" + "0" * 4)[: len(locked(good)) - 1], "Hash mismatch"),
        "no version": (locked(good).replace("1.0", "9.0"), "there is no version of good==9.0"),
        "no package": (locked(good).replace("good", "absent"), "absent was not found"),
        "no wheel": (locked(other), "other==1.0 has no wheels"),
        "lock not whole": (locked(needy), "no trusted hash was provided for: `good`"),
    }


@pytest.mark.parametrize("case", ["wrong hash", "no version", "no package", "no wheel", "lock not whole"])
def test_what_cannot_be_installed_names_the_line_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    text, words = refusals(tmp_path)[case]
    with pytest.raises(BuildFaultError) as refused:
        built(tmp_path, f"# a lock\n{text}", house(tmp_path))
    assert words in str(refused.value)
    assert refused.value.line == (None if case == "lock not whole" else 2)
    assert {path.name for path in tmp_path.iterdir()} <= {"house", "work", "cache", "build.log"}
    assert words.split("`")[0].strip() in " ".join((tmp_path / "build.log").read_text().split())


def test_an_index_that_does_not_serve_is_no_fault_of_the_lock(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "alpha")
    with pytest.raises(IndexFaultError, match="the package index does not serve"):
        built(tmp_path, locked(wheel), PackageIndex(url=NOWHERE, num_retries=0))


def test_a_killed_build_of_a_source_distribution_is_no_fault_of_the_lock(tmp_path: Path) -> None:
    """The kernel kills so at the job's limit of memory."""
    lock = source_lock(tmp_path / "house", "os.kill(os.getpid(), 9)")
    with pytest.raises(IndexFaultError, match="the build was killed"):
        built(tmp_path, lock, house(tmp_path), Recipe("requirements.txt", allows_source=True))


def test_a_full_disk_is_the_hosts_fault(tmp_path: Path) -> None:
    lock = source_lock(tmp_path / "house", "raise OSError(28, 'No space left on device')")
    with pytest.raises(EnvironmentFaultError, match="the host's disk is full") as refused:
        built(tmp_path, lock, house(tmp_path), Recipe("requirements.txt", allows_source=True))
    assert type(refused.value) is EnvironmentFaultError


def test_without_an_index_of_the_operator_nothing_is_fetched(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "alpha")
    with pytest.raises(EnvironmentFaultError, match="names no package index"):
        built(tmp_path, locked(wheel), PackageIndex())


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe("../requirements.txt"), "leads out of the work folder"),
        (Recipe("absent.txt"), "has no file absent.txt"),
        (Recipe("requirements.txt", extras=("more",)), "extras and groups are of a uv.lock"),
    ],
)
def test_a_recipe_that_does_not_fit_its_folder_is_refused(tmp_path: Path, recipe: Recipe, words: str) -> None:
    wheel = make_wheel(tmp_path / "house", "alpha")
    (tmp_path / "requirements.txt").write_text(locked(wheel))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "requirements.txt").write_text(locked(wheel))
    with pytest.raises(LockFaultError, match=words):
        built(tmp_path, "", house(tmp_path), recipe)


def test_a_package_of_the_host_is_not_fetched_and_is_found(tmp_path: Path, interpreter: Interpreter) -> None:
    wheel = make_wheel(tmp_path / "house", "alpha", requires=("torch",))
    text = locked(wheel) + f"torch=={interpreter.versions['torch'].split('+')[0]} --hash=sha256:{'b' * 64}\n"
    recipe = Recipe("requirements.txt", from_host=("torch", "nvidia-*"))
    found = built(tmp_path, text, house(tmp_path), recipe)
    assert (found.num_installed, found.num_from_host) == (1, 1)
    check_host_packages(found.lock, recipe.from_host, interpreter)
    assemble(copied(tmp_path / "built"), tmp_path / "venv", interpreter, has_host_packages=True)
    find = "import importlib.util as find; import alpha; print(find.find_spec('torch').origin)"
    assert "torch" in ran(tmp_path / "venv" / "bin" / "python", "-c", find)


def test_the_hosts_package_must_be_the_locked_version(interpreter: Interpreter) -> None:
    lock = Lock(LockKind.REQUIREMENTS, (LockedPackage("torch", "1.0", line=4), LockedPackage("nvidia-x", "1", line=5)))
    with pytest.raises(EnvironmentFaultError, match=r"torch 1\.0, taken from the host, which has version 2") as refused:
        check_host_packages(lock, ("torch",), interpreter)
    assert refused.value.line == 4
    check_host_packages(lock, ("nvidia-*",), interpreter)
    with pytest.raises(EnvironmentFaultError, match="which has no such package"):
        check_host_packages(lock, ("nvidia-x",), interpreter)


def test_an_environment_of_another_python_is_refused(tmp_path: Path, interpreter: Interpreter) -> None:
    (tmp_path / "built" / "lib" / "python3.7").mkdir(parents=True)
    with pytest.raises(EnvironmentFaultError, match=r"was built for python3\.7, and this host has cpython-3"):
        assemble(copied(tmp_path / "built"), tmp_path / "venv", interpreter, has_host_packages=False)
    assert not (tmp_path / "venv").exists()


def test_the_key_differs_with_all_that_changes_the_result() -> None:
    base = {"interpreter": "cpython-3.11", "platform": "linux_x86_64"}
    keys = [
        environment_key(REQUIREMENTS, b"lock", b"", **base),
        environment_key(REQUIREMENTS, b"other", b"", **base),
        environment_key(REQUIREMENTS, b"lock", b"project", **base),
        environment_key(REQUIREMENTS, b"lock", b"", interpreter="cpython-3.12", platform="linux_x86_64"),
        environment_key(REQUIREMENTS, b"lock", b"", interpreter="cpython-3.11", platform="linux_aarch64"),
        environment_key(Recipe("requirements.txt", from_host=("torch",)), b"lock", b"", **base),
        environment_key(Recipe("requirements.txt", allows_source=True), b"lock", b"", **base),
    ]
    assert len(set(keys)) == len(keys)
    assert environment_key(Recipe("sub/requirements.txt"), b"lock", b"", **base) == keys[0]


def test_assembling_runs_nothing_of_the_environment(tmp_path: Path, interpreter: Interpreter) -> None:
    """It may be done as root, and a ``.pth`` file is code of the tenant."""
    ran_at = tmp_path / "ran"
    line = f"import pathlib; pathlib.Path({str(ran_at)!r}).touch()\n"
    wheel = make_wheel(tmp_path / "house", "alpha", files={"alpha.pth": line})
    built(tmp_path, locked(wheel), house(tmp_path))
    assert ran_at.exists() is False
    assemble(copied(tmp_path / "built"), tmp_path / "venv", interpreter, has_host_packages=True)
    assert ran_at.exists() is False
    ran(tmp_path / "venv" / "bin" / "python", "-c", "import alpha")
    assert ran_at.exists(), "the program itself runs it"


@pytest.mark.parametrize(
    ("script", "words"),
    [("python3", "an interpreter"), ("python", "an interpreter"), ("../pyvenv.cfg", "which the host writes")],
)
def test_a_file_in_the_place_of_the_hosts_is_refused(
    tmp_path: Path, interpreter: Interpreter, script: str, words: str
) -> None:
    content = tmp_path / "built"
    (content / "lib" / f"python{interpreter.version[0]}.{interpreter.version[1]}" / "site-packages").mkdir(parents=True)
    (content / "bin").mkdir()
    (content / "bin" / script).write_text("another's")
    with pytest.raises(EnvironmentFaultError, match=words):
        assemble(copied(content), tmp_path / "venv", interpreter, has_host_packages=False)
    assert (content / "bin" / script).read_text() == "another's"
    assert not (tmp_path / "venv").exists()


def test_a_package_that_brings_an_interpreter_cannot_be_built(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "house", "alpha", files={"alpha-1.0.data/scripts/python3": "#!/bin/sh\n"})
    with pytest.raises(BuildFaultError, match="python3"):
        built(tmp_path, locked(wheel), house(tmp_path))
    assert not (tmp_path / "built").exists()


def test_a_missing_wheelhouse_is_no_fault_of_the_lock(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "alpha")
    with pytest.raises(EnvironmentFaultError, match="is missing, or closed to its builds") as refused:
        built(tmp_path, locked(wheel), house(tmp_path))
    assert not isinstance(refused.value, BuildFaultError)
