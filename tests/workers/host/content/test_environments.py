"""Environments on hosts: built by one, fetched by the others, assembled once a host, and never half there."""

import json
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import msgspec
import pytest

from muster.environments.recipe import PackageIndex, Recipe
from tests.environments.wheels import locked, make_wheel, served_index, source_lock
from tests.recorded_server import Answer, Requested, problem, serving
from tests.waiting import wait_until
from tests.workers.host.supervisor.user_case import needs_users, own_uid
from workers.host.content import assembled, copies
from workers.host.content.faults import NoRoomError
from workers.host.content.places import READ_AGAIN_S, Place
from workers.host.supervisor.files import NS_PER_S

from .bundle_case import TENANT, stored, write_folder
from .environment_case import EnvironmentHost, SlowBuild, kill, new_host, one_wheel, printed

BY_SOURCE = Recipe("requirements.txt", allows_source=True)
SHOW = "import alpha; print(alpha.VERSION)"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    return tmp_path / "house"


@pytest.fixture
def host(tmp_path: Path, house: Path) -> EnvironmentHost:
    return new_host(tmp_path / "one", tmp_path / "plane", house)


@pytest.fixture
def other(tmp_path: Path, house: Path) -> EnvironmentHost:
    return new_host(tmp_path / "two", tmp_path / "plane", house)


def test_one_host_builds_and_another_fetches(host: EnvironmentHost, other: EnvironmentHost, house: Path) -> None:
    lock = one_wheel(house, command="say-alpha")
    first = host.environment(host.bundle(lock))
    assert printed(first, SHOW) == "1.0"
    assert host.plane.known()["fetched"] == [], "the builder takes what it has built"
    second = other.environment(other.bundle(lock))
    assert printed(second, SHOW) == "1.0"
    known = host.plane.known()
    assert known["num_builds"] == 1
    assert known["fetched"] != []
    assert not list(host.state.glob("work/*.build")), "nothing of the build is left"


def test_an_environment_is_assembled_once_a_host(host: EnvironmentHost, house: Path) -> None:
    digest = host.bundle(one_wheel(house))
    first = host.environment(digest, "att_1")
    made_at = (first / "pyvenv.cfg").stat().st_mtime_ns
    assert host.environment(digest, "att_2") == first
    assert (first / "pyvenv.cfg").stat().st_mtime_ns == made_at


def place_of(host: EnvironmentHost) -> Place:
    return Place.named(next((host.state / "content" / TENANT).glob("*.env")))


def damage(path: Path, at: int) -> None:
    """Change a byte, and nothing else that shows."""
    status = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        [old] = file.read(1)
        file.seek(at)
        file.write(bytes([old ^ 1]))
    path.chmod(status.st_mode)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_it_is_stored_as_one_archive_with_its_bytecode(host: EnvironmentHost, house: Path) -> None:
    tests = {"alpha/tests/test_it.py": "", "alpha/part.py": "VALUE = 1\n"}
    environment = host.environment(host.bundle(one_wheel(house, files=tests)))
    [archive] = [path for path in place_of(host).copy.rglob("*") if path.is_file()]
    with tarfile.open(archive) as found:
        modules = {name.partition("site-packages/")[2] for name in found.getnames()}
    tag = sys.implementation.cache_tag
    compiled = {f"alpha/__pycache__/__init__.{tag}.pyc", f"alpha/__pycache__/part.{tag}.pyc"}
    assert {name for name in modules if name.endswith(".pyc")} == compiled, "no program imports a package's tests"
    assert (environment / "lib").stat().st_mode & 0o222 == 0
    record = copies.record_of(place_of(host))
    assert record is not None
    assert record.num_bytes == 2 * archive.stat().st_size, "the archive and what is unpacked"


@pytest.mark.parametrize("is_damaged", [True, False])
def test_its_files_are_read_again_after_a_day(host: EnvironmentHost, house: Path, *, is_damaged: bool) -> None:
    digest = host.bundle(one_wheel(house))
    first = host.environment(digest, "att_1")
    record = place_of(host).file("own")
    noted = msgspec.msgpack.decode(record.read_bytes())
    noted["read_at_ns"] -= 2 * READ_AGAIN_S * NS_PER_S
    record.write_bytes(msgspec.msgpack.encode(noted))
    [module] = first.glob("lib/*/site-packages/alpha/__init__.py")
    if is_damaged:
        damage(module, 1)
    second = host.environment(digest, "att_2")
    assert (second == first) is not is_damaged
    assert printed(second, SHOW) == "1.0"
    assert msgspec.msgpack.decode(record.read_bytes())["read_at_ns"] > noted["read_at_ns"]


def test_a_damaged_archive_is_fetched_again(host: EnvironmentHost, other: EnvironmentHost, house: Path) -> None:
    lock = one_wheel(house)
    host.environment(host.bundle(lock))
    digest = other.bundle(lock)
    other.environment(digest, "att_1")
    place, num_fetched = place_of(other), len(other.plane.known()["fetched"])
    [archive] = place.copy.rglob("*.tar")
    damage(archive, 0)
    place.file("own").unlink()
    assert printed(other.environment(digest, "att_2"), SHOW) == "1.0"
    assert len(other.plane.known()["fetched"]) == num_fetched + 1


def test_a_stored_environment_that_is_no_archive_is_no_hosts_fault(
    host: EnvironmentHost, other: EnvironmentHost, house: Path, tmp_path: Path
) -> None:
    lock = one_wheel(house)
    host.environment(host.bundle(lock))
    digest, _, chunks, manifest = stored(write_folder(tmp_path / "bad", **{"others.tar": b"no archive" * 1000}))
    for name, content in {**chunks, digest: manifest}.items():
        (host.plane.folder / name).write_bytes(content)
    host.plane.change(built=dict.fromkeys(host.plane.known()["built"], digest))
    end = other.run(other.order(other.bundle(lock)))
    assert not end["is_of_host"]
    assert "the environment cannot be used" in end["why"]
    assert list((other.state / "environments" / TENANT).iterdir()) == []


def test_one_that_was_changed_is_made_again_next_to_the_one_that_runs(host: EnvironmentHost, house: Path) -> None:
    digest = host.bundle(one_wheel(house))
    first = host.environment(digest, "att_1")
    [module] = first.glob("lib/*/site-packages/alpha/__init__.py")
    module.parent.chmod(0o755)
    (module.parent / "more.py").write_text("")
    second = host.environment(digest, "att_2")
    assert second != first
    assert first.is_dir(), "att_1 still runs by it"
    assert not list(second.glob("lib/*/site-packages/alpha/more.py"))
    host.close("att_1")
    assembled.sweep(host.state, host.state / "content")
    assert not first.exists()
    assert printed(second, SHOW) == "1.0"


def test_it_stays_while_an_attempt_runs_by_it_and_goes_with_its_copy(host: EnvironmentHost, house: Path) -> None:
    digest = host.bundle(one_wheel(house))
    environment = host.environment(digest)
    place = place_of(host)
    other = host.disk.place("ab" * 32)
    with pytest.raises(NoRoomError, match="space for bundles and environments is full"):
        copies.make_room(other, 100, 0, most=100, least_free=0, used=())
    assert printed(environment, SHOW) == "1.0"
    host.close("att_1")
    copies.make_room(other, 100, 0, most=100, least_free=0, used=())
    assert not place.copy.exists()
    assert not environment.exists()


@pytest.mark.parametrize("case", ["hash", "absent", "options"])
def test_a_lock_that_cannot_be_built_is_nobodys_fault_but_its_own(
    host: EnvironmentHost, house: Path, case: str
) -> None:
    good = one_wheel(house)
    text, words, line = {
        "hash": (good.replace("sha256:", "sha256:" + "0" * 4)[: len(good) - 1], "Hash mismatch", 2),
        "absent": (good.replace("alpha", "absent"), "absent was not found", 2),
        "options": (f"--index-url http://elsewhere/\n{good}", "the option --index-url is not accepted", 2),
    }[case]
    end = host.run(host.order(host.bundle(f"# a lock\n{text}")))
    assert not end["is_of_host"]
    assert words in end["why"]
    [failure] = host.plane.known()["ends"]
    assert (failure["found"], failure["line"]) == ("final", line)
    again = host.run(host.order(host.bundle(f"# a lock\n{text}"), "att_2"))
    assert words in again["why"]
    assert host.plane.known()["num_builds"] == 1, "nothing is built that failed"


def test_a_source_distribution_is_built_by_the_tenants_word_alone(host: EnvironmentHost, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w').write(str(sorted(__import__('os').environ)))"
    lock = source_lock(tmp_path / "house", code)
    refused = host.run(host.order(host.bundle(lock)))
    assert "no wheels" in refused["why"] or "no usable wheels" in refused["why"], refused
    assert not mark.exists()
    environment = host.environment(host.bundle(lock), "att_2", BY_SOURCE)
    assert printed(environment, "import delta; print(delta.VERSION)") == "1.0"
    assert "MUSTER" not in mark.read_text(), "a build sees no variable of the host worker"


def test_an_index_that_does_not_serve_is_tried_again_and_then_blames_no_lock(
    host: EnvironmentHost, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "wheels", "alpha")
    host.index = PackageIndex(url="http://127.0.0.1:9/simple", num_retries=0)
    host.build_s = 4.0
    end = host.run(host.order(host.bundle(locked(wheel))))
    assert end["is_of_host"]
    assert "it was not here within 4 s: the package index does not serve" in end["why"]
    assert {failure["found"] for failure in host.plane.known()["ends"]} == {"passing"}
    host.build_s = 120.0
    with served_index(tmp_path / "index", wheel) as (url, _):
        host.index = PackageIndex(url=url)
        assert printed(host.environment(host.bundle(locked(wheel)), "att_2"), SHOW) == "1.0"


def test_without_a_source_of_packages_the_host_is_to_blame(host: EnvironmentHost, house: Path) -> None:
    digest = host.bundle(one_wheel(house))
    host.index = PackageIndex()
    end = host.run(host.order(digest))
    assert end["is_of_host"]
    assert "names no package index" in end["why"]
    host.index = PackageIndex(wheelhouse=str(house / "gone"))
    assert "is missing, or closed to its builds" in host.run(host.order(digest, "att_2"))["why"]


def test_a_bundle_without_its_lock_states_what_may_leave_it_out(host: EnvironmentHost) -> None:
    end = host.run(host.order(host.bundle("", "other.txt")))
    assert not end["is_of_host"]
    assert "the bundle has no file requirements.txt; does `.gitignore`" in end["why"]


def test_a_host_whose_package_has_another_version_is_to_blame(host: EnvironmentHost, house: Path) -> None:
    lock = one_wheel(house) + f"torch==0.1 --hash=sha256:{'b' * 64}\n"
    end = host.run(host.order(host.bundle(lock), recipe=Recipe("requirements.txt", from_host=("torch",))))
    assert end["is_of_host"]
    assert "the lock names torch 0.1, taken from the host, which has version" in end["why"]


def test_a_kill_at_any_step_leaves_nothing_torn_that_is_used(
    host: EnvironmentHost, other: EnvironmentHost, house: Path
) -> None:
    lock = locked(make_wheel(house, "alpha", requires=("beta",)), make_wheel(house, "beta"))
    digest = host.bundle(lock)
    num_deaths, after = 0, 1
    while True:
        process = host.start(host.order(digest), dies_after=after)
        _, fault = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode == 77, fault
        num_deaths, after = num_deaths + 1, after + 4
    assert num_deaths > 10
    for made in (host.environment(digest, "att_2"), other.environment(other.bundle(lock))):
        assert printed(made, "import alpha, beta; print(alpha.VERSION, beta.VERSION)") == "1.0 1.0"
        assert len(list(made.glob("lib/*/site-packages/*/__pycache__/__init__.*.pyc"))) == 2
    host.close("att_1")
    host.close("att_2")
    assembled.sweep(host.state, host.state / "content")
    assert len(list((host.state / "environments" / TENANT).iterdir())) == 1


def test_a_killed_build_is_taken_over_by_another_host(
    host: EnvironmentHost, other: EnvironmentHost, house: Path, tmp_path: Path
) -> None:
    with SlowBuild.in_house(house, tmp_path) as slow:
        building = host.start(host.order(host.bundle(slow.lock), recipe=BY_SOURCE))
        wait_until(lambda: slow.num_begun() == 1)
        waiting = other.start(other.order(other.bundle(slow.lock), recipe=BY_SOURCE))
        wait_until(lambda: host.plane.known()["num_waits"] > 0)
        kill(building)
        wait_until(lambda: slow.num_begun() == 2)
        assert host.plane.known()["num_builds"] == 2
        kill(waiting)


def test_a_build_that_lost_its_claim_ends(host: EnvironmentHost, house: Path, tmp_path: Path) -> None:
    host.build_s = 9.0
    with SlowBuild.in_house(house, tmp_path) as slow:
        process = host.start(host.order(host.bundle(slow.lock), recipe=BY_SOURCE))
        wait_until(lambda: bool(slow.processes()))
        host.plane.change(builder=os.getpid())
        wait_until(lambda: not slow.processes())
        lines, _ = process.communicate(timeout=60)
    assert "it was not here within 9 s: another host builds it" in lines


def test_a_build_ends_when_its_part_is_over(host: EnvironmentHost, house: Path, tmp_path: Path) -> None:
    is_over = threading.Event()

    def answer(_requested: Requested, _number: int) -> Answer:
        return problem(409, "stale_fence") if is_over.is_set() else Answer(document={"state": "build", "lease_s": 4.0})

    key = tmp_path / "key"
    key.write_text("mk_node\n")
    key.chmod(0o600)
    with SlowBuild.in_house(house, tmp_path) as slow, serving(answer) as server:
        order = host.order(host.bundle(slow.lock), recipe=BY_SOURCE)
        process = host.start_fetch(msgspec.structs.replace(order, api_url=server.url, key_file=str(key)))
        wait_until(lambda: bool(slow.processes()))
        is_over.set()
        wait_until(lambda: not slow.processes())
        lines, faults = process.communicate(timeout=60)
    last = json.loads(lines.splitlines()[-1])
    assert (last["what"], last["is_of_host"]) == ("environment", True), faults
    assert "the attempt is over" in last["why"]


@needs_users
def test_a_build_ends_no_process_of_the_user_that_a_container_names(host: EnvironmentHost, house: Path) -> None:
    uid = own_uid()
    asked = host.order(host.bundle(one_wheel(house)))
    order = msgspec.structs.replace(asked, are_linked=False, owner=(uid, uid))
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=uid, group=uid, extra_groups=[]) as other:
        assert "venv" in host.run(order)
        assert other.poll() is None
