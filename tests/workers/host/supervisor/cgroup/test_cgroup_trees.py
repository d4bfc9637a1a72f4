"""Where groups are made and what is written there, on the hosts that this machine is not: played trees of files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from workers.host.supervisor.cgroup import group as cgroup
from workers.host.supervisor.cgroup.block_devices import block_devices
from workers.host.supervisor.cgroup.group import Group, find_group, group_name, make_group
from workers.host.supervisor.cgroup.place import LEAF, NONE, V1, V2, Place, find_place
from workers.host.supervisor.order_parts import HostLimits

UNLIMITED = HostLimits()
LIMITED = HostLimits(memory_bytes=1 << 30, pids=64, cpus=2.5)
FILES_OF_V2 = ("cgroup.procs", "cgroup.kill")
FILES_OF_CONTROLLERS = ("memory.max", "memory.swap.max", "memory.events", "pids.max", "cpu.max", "cpu.weight")


class PlayedHost:
    """A /proc that says which groups are ours and what is mounted; the folders of the mounts are next to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / "proc"
        (self.proc / "self").mkdir(parents=True)

    def states(self, groups: str, *mounts: tuple[str, str, str]) -> Place:
        """``mounts``: the mounted group, the folder's name, and the file system with its options."""
        (self.proc / "self" / "cgroup").write_text(groups, encoding="utf-8")
        lines = [
            f"3{number} 23 0:2{number} {group} {self.folder}/{name} rw,relatime shared:9 - {kind} cgroup {options}"
            for number, (group, name, filesystem) in enumerate(mounts)
            for kind, options in [filesystem.split(" ")]
        ]
        text = "\n".join(["23 28 0:22 / /proc rw,relatime shared:14 - proc proc rw", *lines]) + "\n"
        (self.proc / "self" / "mountinfo").write_text(text, encoding="utf-8")
        return find_place(self.proc)

    def has(self, *folders: str) -> None:
        for folder in folders:
            (self.folder / folder).mkdir(parents=True)


@pytest.fixture
def host(tmp_path: Path) -> PlayedHost:
    return PlayedHost(tmp_path)


@pytest.fixture
def make_like_kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...]], None]:
    """From now on a new group has these files, as the kernel would put them there."""

    def play(names: tuple[str, ...]) -> None:
        def create(folder: Path) -> None:
            folder.mkdir()
            for name in names:
                (folder / name).touch()

        monkeypatch.setattr(cgroup, "_create", create)

    return play


def test_version_2_makes_them_below_our_own_group(host: PlayedHost) -> None:
    host.has("unified/system.slice/muster.service")
    place = host.states("0::/system.slice/muster.service\n", ("/", "unified", "cgroup2 rw"))
    assert (place.kind, place.folders) == (V2, {"": host.folder / "unified/system.slice/muster.service"})


def test_version_2_makes_them_next_to_the_leaf_that_holds_the_launcher(host: PlayedHost) -> None:
    host.has(f"unified/muster.service/{LEAF}")
    place = host.states(f"0::/muster.service/{LEAF}\n", ("/", "unified", "cgroup2 rw"))
    assert place.folders == {"": host.folder / "unified/muster.service"}


def test_a_container_sees_its_own_part_alone(host: PlayedHost) -> None:
    host.has("memory/inner", "pids")
    place = host.states(
        "5:pids:/docker/c1\n4:memory:/docker/c1/inner\n",
        ("/docker/other", "elsewhere", "cgroup rw,memory"),
        ("/docker/c1", "memory", "cgroup rw,memory"),
        ("/docker/c1", "pids", "cgroup rw,pids"),
    )
    assert (place.kind, place.folders) == (
        V1,
        {"memory": host.folder / "memory/inner", "pids": host.folder / "pids"},
    )


def test_a_host_of_both_versions_is_one_of_version_1(host: PlayedHost) -> None:
    host.has("unified", "memory", "cpu,cpuacct/user.slice")
    place = host.states(
        "4:memory:/\n3:cpu,cpuacct:/user.slice\n1:name=systemd:/\n0::/\n",
        ("/", "unified", "cgroup2 rw"),
        ("/", "memory", "cgroup rw,memory"),
        ("/", "cpu,cpuacct", "cgroup rw,cpu,cpuacct"),
    )
    assert (place.kind, place.folders) == (
        V1,
        {"memory": host.folder / "memory", "cpu": host.folder / "cpu,cpuacct/user.slice"},
    )


def test_a_host_without_any_reports_it(host: PlayedHost) -> None:
    assert host.states("0::/\n").reason == "no cgroup file system is mounted that holds our own group"
    none = find_place(host.folder / "nothing")
    assert none.kind == NONE
    assert "No such file" in str(none.reason)


def test_a_host_without_any_does_as_before(tmp_path: Path) -> None:
    group = make_group(Place(NONE, {}, "not mounted"), "muster-a", LIMITED)
    group.place(1)
    group.forbid_forks()
    group.kill()
    assert (group.kind, group.reason) == (NONE, "not mounted; no limit is in force")
    assert (group.processes(), group.oom_kills(), group.remove()) == (set(), None, True)


def test_version_2_is_reported_its_limits(tmp_path: Path, make_like_kernel: Callable[[tuple[str, ...]], None]) -> None:
    make_like_kernel((*FILES_OF_V2, *FILES_OF_CONTROLLERS))
    (tmp_path / "cgroup.subtree_control").touch()
    group = make_group(Place(V2, {"": tmp_path}), "muster-a", LIMITED)
    folder = tmp_path / "muster-a"
    said = {name: (folder / name).read_text() for name in FILES_OF_CONTROLLERS}
    assert said == {
        "memory.max": "1073741824",
        "memory.swap.max": "0",
        "memory.events": "",
        "pids.max": "64",
        "cpu.max": "250000 100000",
        "cpu.weight": "250",
    }
    assert (group.kind, group.reason) == (V2, None)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu", "asked one by one; the last is left in a file"


IO = HostLimits(io_read_bytes_per_s=1 << 20, io_write_bytes_per_s=1 << 21)


@pytest.fixture
def two_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "block_devices", lambda: ["8:0", "259:1"])


@pytest.mark.usefixtures("two_disks")
def test_version_2_limits_each_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(cgroup, "_write", lambda path, value: told.append((path.name, value)))
    group = make_group(Place(V2, {"": tmp_path}), "muster-a", IO)
    assert told[-3:] == [
        ("cgroup.subtree_control", "+io"),
        ("io.max", "8:0 rbps=1048576 wbps=2097152"),
        ("io.max", "259:1 rbps=1048576 wbps=2097152"),
    ]
    assert group.reason is None
    make_group(Place(V2, {"": tmp_path}), "muster-b", HostLimits(io_write_bytes_per_s=1 << 21))
    assert told[-1] == ("io.max", "259:1 wbps=2097152")


@pytest.mark.usefixtures("two_disks")
def test_version_1_limits_each_disk_in_a_group_that_is_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    monkeypatch.setattr(cgroup, "_write", lambda path, value: told.append((path.name, value)))
    place = Place(V1, {"pids": tmp_path / "pids", "blkio": tmp_path / "blkio"})
    for folder in place.folders.values():
        folder.mkdir()
    assert set(make_group(place, "muster-a", UNLIMITED).folders) == {"pids"}
    assert set(make_group(place, "muster-b", IO).folders) == {"pids", "blkio"}
    assert told == [
        ("blkio.throttle.read_bps_device", "8:0 1048576"),
        ("blkio.throttle.read_bps_device", "259:1 1048576"),
        ("blkio.throttle.write_bps_device", "8:0 2097152"),
        ("blkio.throttle.write_bps_device", "259:1 2097152"),
    ]


@pytest.mark.usefixtures("two_disks")
def test_a_kernel_that_limits_no_disk_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = make_group(Place(V1, {"pids": tmp_path}), "muster-a", IO)
    assert "the limit blkio.throttle.read_bps_device=8:0 1048576 is not in force: there is no group for blkio" in (
        str(group.reason)
    )
    monkeypatch.setattr(cgroup, "block_devices", list)
    group = make_group(Place(V1, {"pids": tmp_path}), "muster-b", IO)
    assert group.reason == "the limit of input and output is not in force: the kernel lists no disk"


def test_disks_are_what_has_a_size_and_is_no_memory(tmp_path: Path) -> None:
    for name, size in (("sda", "100"), ("nvme0n1", "7"), ("loop3", "9"), ("zram0", "9"), ("sdb", "0"), ("md127", "x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(f"{size}\n")
        (tmp_path / name / "dev").write_text(f"{name}:0\n")
    (tmp_path / "torn").mkdir()
    assert block_devices(tmp_path) == ["nvme0n1:0", "sda:0"]
    assert block_devices(tmp_path / "none") == []


def test_version_2_without_limits_is_reported_nothing(
    tmp_path: Path, make_like_kernel: Callable[[tuple[str, ...]], None]
) -> None:
    make_like_kernel((*FILES_OF_V2, *FILES_OF_CONTROLLERS))
    group = make_group(Place(V2, {"": tmp_path}), "muster-a", UNLIMITED)
    assert [(tmp_path / "muster-a" / name).read_text() for name in FILES_OF_CONTROLLERS] == [""] * 6
    assert group.reason is None


def test_version_2_that_divides_nothing_for_us_still_holds_and_kills(
    tmp_path: Path, make_like_kernel: Callable[[tuple[str, ...]], None]
) -> None:
    make_like_kernel(FILES_OF_V2)
    group = make_group(Place(V2, {"": tmp_path}), "muster-a", LIMITED)
    group.place(17)
    group.kill()
    folder = tmp_path / "muster-a"
    assert ((folder / "cgroup.procs").read_text(), (folder / "cgroup.kill").read_text()) == ("17", "1")
    assert group.kind == V2
    for limit in ("memory.max=1073741824", "pids.max=64", "cpu.max=250000 100000"):
        assert f"the limit {limit} is not in force: No such file or directory" in str(group.reason)
    assert group.oom_kills() is None


def test_memory_kills_of_version_2_are_its_own_groups(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert Group(V2, {"": tmp_path}).oom_kills() == 3


def test_what_is_below_counts_and_what_is_in_another_namespace_has_no_number(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "cgroup.procs").write_text("0\n12\n")
    (tmp_path / "inner" / "cgroup.procs").write_text("13\n")
    assert Group(V2, {"": tmp_path}).processes() == {12, 13}


def test_the_least_of_a_cpu_is_the_kernels(tmp_path: Path, make_like_kernel: Callable[[tuple[str, ...]], None]) -> None:
    make_like_kernel((*FILES_OF_V2, *FILES_OF_CONTROLLERS))
    make_group(Place(V2, {"": tmp_path}), "muster-a", HostLimits(cpus=0.001))
    assert (tmp_path / "muster-a" / "cpu.max").read_text() == "1000 100000"
    assert (tmp_path / "muster-a" / "cpu.weight").read_text() == "1"


def test_a_group_that_takes_no_process_is_given_up_and_reports_it(tmp_path: Path) -> None:
    (tmp_path / "muster-a").mkdir()
    group = Group(V1, {"pids": tmp_path / "muster-a"})
    group.place(17)
    assert group.kind == NONE
    assert str(group.reason).startswith(f"{tmp_path}/muster-a: no process may be put there: ")
    assert not (tmp_path / "muster-a").exists()


def test_a_group_of_a_start_that_died_is_made_afresh_and_one_in_use_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "muster-a").mkdir()
    (tmp_path / "muster-b" / "in-use").mkdir(parents=True)
    place = Place(V2, {"": tmp_path})
    assert make_group(place, "muster-a", UNLIMITED).kind == V2
    taken = make_group(place, "muster-b", UNLIMITED)
    assert (taken.kind, taken.folders) == (NONE, {})
    assert "no group can be made" in str(taken.reason)


def test_names_are_of_attempt_and_node_and_stay_in_their_folder() -> None:
    assert group_name("att_1", "node.2") == "muster-att_1-node.2"
    assert "/" not in group_name("../att", "a/b")


def test_a_dead_supervisors_group_is_the_one_it_wrote_down_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "muster-a"
    identity = {"cgroup": Group(V2, {"": folder}).identity()}
    found = find_group(identity, "muster-a")
    assert (found.kind, found.folders) == (V2, {"": folder})
    assert find_group(identity, "muster-b").folders == {}
    nowhere = find_group({"cgroup": Group(NONE, {}).identity()}, "muster-a")
    assert (nowhere.kind, nowhere.remove()) == (NONE, True)


def test_a_supervisor_of_before_had_none(tmp_path: Path) -> None:
    """No group is reported only because its name could exist."""
    found = find_group({"pid": 17}, f"muster-{tmp_path.name}")
    assert (found.kind, found.folders) == (NONE, {})
