"""``muster job submit --lock``: the lock is read before anything is sent, and its path is the bundle's."""

from pathlib import Path

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.cli.job.served_folders import Served, newest, submit

pytestmark = pytest.mark.timeout(400)
LOCKED = f"good==1.0 --hash=sha256:{'a' * 64}\nneedy==2.0 \\\n  --hash=sha256:{'b' * 64}\n"
PROJECT = "[project]\nname = 'x'\nversion = '1'\n"
WHEEL = "{{ url = 'https://index.example/{name}-1.0-py3-none-any.whl', hash = 'sha256:00', size = {size} }}"


def uv_lock(**sizes: int) -> str:
    packages = [
        f"[[package]]\nname = '{name}'\nversion = '1.0'\nsource = {{ registry = 'https://index.example/simple' }}\n"
        f"wheels = [{WHEEL.format(name=name, size=size)}]\n"
        for name, size in sizes.items()
    ]
    return "\n".join(["version = 1", *packages])


def test_a_lock_of_the_folder_becomes_the_programs_environment(muster: Command, served: Served) -> None:
    (muster.folder / "locks").mkdir()
    (muster.folder / "locks" / "requirements.txt").write_text(LOCKED)
    done = submit(
        muster, served, "--lock", "locks/requirements.txt", "--from-host", "needy", "--allow-source", "train.py"
    )
    assert done.returncode == Exit.OK, done.stderr
    program = newest(served)
    assert program["environment"] == {
        "lock": "locks/requirements.txt",
        "extras": [],
        "groups": [],
        "from_host": ["needy"],
        "allows_source": True,
    }
    words = "environment of locks/requirements.txt: 1 package of sizes that the lock does not say; 1 from the hosts"
    assert words in done.stderr
    assert "no host builds environments: none in contact has a package index or a wheelhouse" in done.stderr


def test_the_sizes_of_a_uv_lock_are_stated_before(muster: Command, served: Served) -> None:
    (muster.folder / "pyproject.toml").write_text(PROJECT)
    (muster.folder / "uv.lock").write_text(uv_lock(small=2_000_000, torch=190_000_000))
    planned = submit(muster, served, "--dry-run", "--lock", "uv.lock", "--extra", "gpu", "train.py")
    assert planned.returncode == Exit.OK, planned.stderr
    assert "environment of uv.lock: 2 packages, at most 192 MB; largest torch 190 MB" in planned.stdout
    assert " ".join(planned.stdout.split()).count("no host builds environments") == 1
    plan = muster.run("job", "plan", "--lock", "uv.lock", "--from-host", "torch", url=served.url)
    words = "environment of uv.lock: 1 package, at most 2 MB; largest small 2 MB; 1 from the hosts"
    assert words in " ".join(plan.stdout.split())
    assert "no host builds environments" in " ".join(plan.stdout.split())


def test_a_job_file_names_a_lock_next_to_it(muster: Command, served: Served) -> None:
    (muster.folder / "requirements.txt").write_text(LOCKED)
    (muster.folder / "job.yaml").write_text(
        "name: locked\nprogram:\n  script: train.py\n  environment:\n    lock: requirements.txt\n"
    )
    done = submit(muster, served, "-f", "job.yaml")
    assert done.returncode == Exit.OK, done.stderr
    program = newest(served)
    assert (program["script"], program["environment"]["lock"]) == ("train.py", "requirements.txt")
    (muster.folder / "other.txt").write_text(LOCKED)
    assert submit(muster, served, "-f", "job.yaml", "--lock", "other.txt").returncode == Exit.OK
    assert newest(served)["environment"]["lock"] == "other.txt"


def refusals(folder: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return the words of a submission and a part of its refusal, by case."""
    (folder / "requirements.txt").write_text("# a lock\ngood>=1\n")
    (folder / "good.txt").write_text(LOCKED)
    (folder / "uv.lock").write_text(uv_lock(good=1))
    (folder / "left-out.txt").write_text(LOCKED)
    (folder / ".gitignore").write_text("left-out.txt\n")
    return {
        "line": (("--lock", "requirements.txt"), "requirements.txt line 2: good names no exact version"),
        "missing": (("--lock", "absent.txt"), "has no file absent.txt, which is the lock file"),
        "ignored": (("--lock", "left-out.txt"), "goes without the lock file left-out.txt"),
        "project": (("--lock", "uv.lock"), "has no file pyproject.toml, which is the project of the lock"),
        "outside": (("--lock", "/etc/requirements.txt"), "is not in the work folder"),
        "alone": (("--from-host", "torch"), "give --lock too"),
        "venv": (("--lock", "good.txt", "--venv", "/srv/venv"), "leave --venv out"),
        "extras": (("--lock", "good.txt", "--extra", "gpu"), "`extras` and `groups` are of a `uv.lock`"),
        "no bundle": (("--lock", "good.txt", "--no-bundle"), "is built from a lock file of the work folder"),
    }


@pytest.mark.parametrize(
    "case", ["line", "missing", "ignored", "project", "outside", "alone", "venv", "extras", "no bundle"]
)
def test_a_lock_that_cannot_work_is_refused_before_a_job_is_there(muster: Command, served: Served, case: str) -> None:
    words, refusal = refusals(muster.folder)[case]
    with served.client() as client:
        before = len(list(client.jobs()))
    done = submit(muster, served, *words, "train.py")
    assert done.returncode in {Exit.USAGE, Exit.INVALID}, done.stderr
    assert refusal in " ".join(done.stderr.split())
    with served.client() as client:
        assert len(list(client.jobs())) == before
