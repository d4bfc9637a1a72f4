"""A program opens its own GPUs' device files and no others: by real groups, on device files that no driver serves.

Such a file fails with ENXIO where the kernel lets it be opened, and with EPERM where it does not.
"""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.workers.host.supervisor.attempt_case import Attempt, until
from tests.workers.host.supervisor.cgroup.test_cgroup_v2 import place_of_v2
from workers.host.supervisor import gpu_check, gpu_query
from workers.host.supervisor.cgroup import device_files
from workers.host.supervisor.cgroup.device_files import MAJOR, MOST_GPUS, barred_files
from workers.host.supervisor.cgroup.devices import NotBarredError, bar
from workers.host.supervisor.cgroup.group import Group, make_group
from workers.host.supervisor.cgroup.place import NONE, V1, V1_DEVICES, V2, Place, find_place
from workers.host.supervisor.gpu_query import UnansweredError
from workers.host.supervisor.order import read_order
from workers.host.supervisor.order_parts import HostLimits

CONTROL: Final = 255
CAPABILITIES: Final = 511
OPENS: Final = """
import errno, os, sys
sys.stdin.readline()
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print("open")
    except OSError as fault:
        print(errno.errorcode[fault.errno])
try:
    os.mknod(sys.argv[1] + ".again", 0o20600, os.stat(sys.argv[1]).st_rdev)
    print("made")
except OSError as fault:
    print(errno.errorcode[fault.errno])
"""
SUPERVISES: Final = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from workers.host.supervisor import supervise
from workers.host.supervisor.cgroup import device_files
device_files._PROC, device_files._PCI = Path(sys.argv[2]), Path(sys.argv[3])
device_files.has_nvidia = supervise.has_nvidia = lambda: True
raise SystemExit(supervise.main(sys.argv[4]))
"""
"""The supervisor itself, on a host whose driver is played."""


@dataclass(frozen=True)
class PlayedDriver:
    """What a driver shows of its GPUs in /proc and /sys: three, of which the last is split."""

    proc: Path
    pci: Path

    def has(self, uuid: str, minor: int, *, instances: int = 0) -> None:
        address = f"0000:{minor:02x}:00.0"
        self._write(
            self.proc / "driver/nvidia/gpus" / address / "information",
            f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n"
            f"Device Minor: \t {minor}\nGPU Excluded:\t No\n",
        )
        for number, name in enumerate(("card", "renderD")):
            self._write(self.pci / address / "drm" / f"{name}{minor}" / "dev", f"226:{128 * number + minor}\n")
        split = self.proc / f"driver/nvidia/capabilities/gpu{minor}/mig"
        for instance in range(1, instances + 1):
            for place, number in ((f"gi{instance}", 10 * instance), (f"gi{instance}/ci0", 10 * instance + 1)):
                self._write(split / place / "access", f"DeviceFileMinor: {number}\nDeviceFileMode: 292\n")

    def has_capabilities(self) -> None:
        self._write(
            self.proc / "devices", f"Character devices:\n{CAPABILITIES} nvidia-caps\n510 nvidia-uvm\n\nBlock:\n"
        )
        for minor, name in enumerate(("config", "monitor"), start=1):
            self._write(self.proc / f"driver/nvidia/capabilities/mig/{name}", f"DeviceFileMinor: {minor}\n")

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


@pytest.fixture
def driver(tmp_path: Path) -> PlayedDriver:
    played = PlayedDriver(tmp_path / "played/proc", tmp_path / "played/pci")
    (played.proc / "devices").parent.mkdir(parents=True)
    (played.proc / "devices").touch()
    for minor, uuid in enumerate(("GPU-1", "GPU-2", "GPU-3")):
        played.has(uuid, minor, instances=2 if minor == 2 else 0)
    return played


def barred_for(driver: PlayedDriver, *uuids: str) -> list[tuple[int, int]]:
    return barred_files(uuids, driver.proc, driver.pci)


# --- what is barred


def test_every_gpu_but_ones_own_is_barred_those_that_are_to_come_too(driver: PlayedDriver) -> None:
    barred = barred_for(driver, "GPU-1", "GPU-3")
    assert {minor for major, minor in barred if major == MAJOR} == set(range(MOST_GPUS)) - {0, 2}
    assert {minor for major, minor in barred if major == 226} == {1, 129}, "whose render nodes compute as well"


def test_what_all_gpus_share_is_not(driver: PlayedDriver) -> None:
    driver.has_capabilities()
    barred = barred_for(driver)
    assert {minor for major, minor in barred if major == MAJOR} == set(range(MOST_GPUS))
    assert (MAJOR, 254) not in barred
    assert (MAJOR, CONTROL) not in barred
    assert 510 not in {major for major, _ in barred}


def test_of_mig_the_others_instances_are_barred_and_the_laying_out_of_any(driver: PlayedDriver) -> None:
    driver.has_capabilities()
    of_others = [minor for major, minor in barred_for(driver, "GPU-1", "GPU-2") if major == CAPABILITIES]
    assert of_others == [1, 10, 11, 20, 21]
    assert [minor for major, minor in barred_for(driver, "GPU-3") if major == CAPABILITIES] == [1]


def test_a_gpu_that_proc_does_not_name_yet_is_queried_of_nvml(
    driver: PlayedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.has("GPU-????????-????-????-????-????????????", 5)
    look, asked = tmp_path / "look.py", tmp_path / "asked"
    look.write_text(
        f"import sys; open({str(asked)!r}, 'w').write(' '.join(sys.argv[1:])); print('{{\"GPU-6\": 5}}')",
        encoding="utf-8",
    )
    monkeypatch.setattr(gpu_query, "_GPU_CHECK", look)
    barred = barred_for(driver, "GPU-1", "GPU-6")
    assert {minor for major, minor in barred if major == MAJOR} == set(range(MOST_GPUS)) - {0, 5}
    assert (226, 133) not in barred, "its render node is its own too"
    assert asked.read_text(encoding="utf-8") == "--minors GPU-6"


def test_one_that_is_unknown_is_stated(driver: PlayedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = tmp_path / "look.py"
    look.write_text("print('GPU-9 is not there: Not Found'); raise SystemExit(1)", encoding="utf-8")
    monkeypatch.setattr(gpu_query, "_GPU_CHECK", look)
    with pytest.raises(UnansweredError, match="GPU-9 is not there: Not Found"):
        barred_for(driver, "GPU-9")


# --- by the kernel


@dataclass(frozen=True)
class Files:
    own: Path
    others: Path
    control: Path

    @property
    def all(self) -> list[str]:
        return [str(self.others), str(self.own), str(self.control), "/dev/null"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path / "nvidia0", tmp_path / "nvidia1", tmp_path / "nvidiactl")
    for path, minor in ((made.own, 0), (made.others, 1), (made.control, CONTROL)):
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(MAJOR, minor))
        except PermissionError as fault:
            pytest.skip(f"NOT CHECKED: no device file can be made here: {fault}")
    if (came := opened(made.own)) != errno.ENXIO:
        pytest.skip(f"NOT CHECKED: a device file is no device here: {os.strerror(came)}")
    return made


def opened(path: Path) -> int:
    """0, or the error's number."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as fault:
        return fault.errno or -1
    return 0


@pytest.fixture(params=[V1, V2])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Group]:
    place = find_place() if request.param == V1 else place_of_v2(tmp_path)
    made = make_group(place, f"muster-devices-{os.getpid()}", HostLimits(), bars_devices=True)
    if made.kind != request.param or (made.kind == V1 and V1_DEVICES not in made.folders):
        made.remove()
        pytest.skip(f"NOT CHECKED: no group of {request.param} for devices can be made here: {made.reason}")
    yield made
    until(made.remove, "the group's end")


def opened_by_a_program_in(group: Group, paths: list[str]) -> list[str]:
    """Return the result of opening each, and last of creating the first one again."""
    command = [sys.executable, "-c", OPENS, *paths]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        group.place(program.pid)
        said, _ = program.communicate("go\n", timeout=90)
    return said.split()


def test_what_is_barred_is_neither_opened_nor_made_and_all_else_is(
    group: Group, files: Files, driver: PlayedDriver
) -> None:
    assert opened_by_a_program_in(group, [str(files.others)]) == ["ENXIO", "made"], "before"
    files.others.with_name("nvidia1.again").unlink()
    bar(group, barred_for(driver, "GPU-1"))
    assert opened_by_a_program_in(group, files.all) == ["EPERM", "ENXIO", "ENXIO", "open", "EPERM"]


def test_a_group_below_it_opens_no_more(group: Group, files: Files, driver: PlayedDriver) -> None:
    bar(group, barred_for(driver, "GPU-1"))
    inner = Group(group.kind, {name: folder / "inner" for name, folder in group.folders.items()})
    for folder in inner.folders.values():
        folder.mkdir()
    assert opened_by_a_program_in(inner, files.all) == ["EPERM", "ENXIO", "ENXIO", "open", "EPERM"]


def test_below_a_group_that_lists_what_may_be_opened_a_wildcard_gives_way(
    tmp_path: Path, files: Files, driver: PlayedDriver
) -> None:
    """As systemd's ``DeviceAllow=char-nvidia rw`` makes it; there a denial alone is silently without effect."""
    devices = find_place().folders.get(V1_DEVICES)
    if devices is None:
        pytest.skip("NOT CHECKED: this kernel has no devices of version 1")
    above = Place(V1, {V1_DEVICES: devices / f"muster-lists-{os.getpid()}"})
    above.folders[V1_DEVICES].mkdir()
    try:
        for file, line in (("deny", "a"), ("allow", "c 1:* rw"), ("allow", f"c {MAJOR}:* rw")):
            (above.folders[V1_DEVICES] / f"devices.{file}").write_text(line, encoding="ascii")
        group = make_group(above, "muster-a", HostLimits(), bars_devices=True)
        assert opened_by_a_program_in(group, files.all) == ["ENXIO", "ENXIO", "ENXIO", "open", "EPERM"], "before"
        bar(group, barred_for(driver, "GPU-1"))
        assert opened_by_a_program_in(group, files.all) == ["EPERM", "ENXIO", "ENXIO", "open", "EPERM"]
        until(group.remove, "the group's end")
    finally:
        above.folders[V1_DEVICES].rmdir()


def test_a_supervised_program_opens_its_own_gpus_files_alone_and_the_record_reports_it(
    attempt: Attempt, files: Files, driver: PlayedDriver
) -> None:
    place = find_place()
    if place.kind == NONE or (place.kind == V1 and V1_DEVICES not in place.folders):
        pytest.skip("NOT CHECKED: this machine lets us make no groups")
    attempt.order(command=[sys.executable, "-c", OPENS, *files.all], gpus=["GPU-1"])
    supervised(attempt, driver)
    record = attempt.ended()
    if record["cgroup"] == NONE:
        pytest.skip(f"NOT CHECKED: this machine lets us make no groups: {record['cgroup_reason']}")
    assert attempt.log().split() == ["EPERM", "ENXIO", "ENXIO", "open", "EPERM"]
    assert (record["device_files"], record["device_files_reason"]) == ("cgroup", None)
    assert '"device_files": "cgroup"' in (attempt.folder / "events.jsonl").read_text(encoding="utf-8")
    assert attempt.read("clean.json")["clean"]


def supervised(attempt: Attempt, driver: PlayedDriver) -> None:
    root = str(Path(__file__).resolve().parents[5])
    command = [sys.executable, "-c", SUPERVISES, root, str(driver.proc), str(driver.pci), str(attempt.folder)]
    subprocess.run(command, timeout=90, check=True)  # our own


def test_where_is_unknown_whose_a_file_is_the_program_runs_as_before_and_the_record_states_why(
    attempt: Attempt, driver: PlayedDriver
) -> None:
    attempt.order(command=[sys.executable, "-c", "print('done')"], gpus=["GPU-9"])
    supervised(attempt, driver)
    record = attempt.ended()
    assert attempt.log() == "done\n"
    assert record["device_files"] == "none"
    assert record["device_files_reason"] == f"{gpu_check.LIBRARY} is not there"


# --- where the kernel does not hold it


def test_a_host_without_groups_reports_it(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, driver: PlayedDriver
) -> None:
    monkeypatch.setattr(device_files, "has_nvidia", lambda: True)
    monkeypatch.setattr(device_files, "_PROC", driver.proc)
    attempt.order(command=["true"])
    isolated = device_files.isolate(read_order(attempt.folder), Group(NONE, {}))
    assert (isolated.kind, isolated.reason) == ("none", "the attempt has no group of the kernel's")


def test_a_group_that_took_no_process_kept_none_from_anything() -> None:
    lost = Group(V1, {"memory": Path("/nowhere")}, ("/x/muster-a: no process may be put there: Permission denied",))
    facts = device_files.DeviceFiles("cgroup").facts(lost)
    assert facts == {"device_files": "none", "device_files_reason": lost.reason}


def test_simulated_gpus_and_hosts_without_a_driver_have_no_files_to_bar(attempt: Attempt) -> None:
    attempt.order(command=["true"], preparation={"is_simulated": True})
    isolated = device_files.isolate(read_order(attempt.folder), Group(NONE, {}))
    assert (isolated.kind, isolated.reason) == ("none", "the GPUs are simulated")
    attempt.start("print('done')")
    record = attempt.ended()
    assert (record["device_files"], record["device_files_reason"]) == ("none", "no NVIDIA driver is loaded")


def test_a_group_that_lists_every_device_bars_none_and_reports_it(tmp_path: Path) -> None:
    folder = tmp_path / "muster-a"
    folder.mkdir()
    (folder / "devices.list").write_text("b 8:* rw\nc *:* rwm\n", encoding="ascii")
    with pytest.raises(NotBarredError, match="lists every device"):
        bar(Group(V1, {V1_DEVICES: folder}), [(MAJOR, 1)])
    with pytest.raises(NotBarredError, match="no group of version 1 for devices"):
        bar(Group(V1, {"pids": folder}), [(MAJOR, 1)])


def test_docker_lists_every_device_to_be_made_alone_and_the_gpus_are_barred_there(tmp_path: Path) -> None:
    folder = tmp_path / "muster-a"
    folder.mkdir()
    listed = ["b *:* m", "c *:* m", "c 1:3 rwm", "c 136:* rwm", f"c {MAJOR}:* rw"]
    (folder / "devices.list").write_text("\n".join(listed) + "\n", encoding="ascii")
    for name in ("deny", "allow"):
        (folder / f"devices.{name}").touch()
    bar(Group(V1, {V1_DEVICES: folder}), [(MAJOR, 1), (MAJOR, 2)])
    assert (folder / "devices.deny").read_text(encoding="ascii") == f"c {MAJOR}:* rw\n"
    allowed = (folder / "devices.allow").read_text(encoding="ascii").splitlines()
    assert allowed[:3] == [f"c {MAJOR}:{minor} rw" for minor in (0, 3, 4)]
    assert not {f"c {MAJOR}:1 rw", f"c {MAJOR}:2 rw"} & set(allowed)


@pytest.mark.parametrize("access", ["r", "w", "rm"])
def test_every_device_that_may_be_opened_in_any_way_is_too_many(tmp_path: Path, access: str) -> None:
    (tmp_path / "devices.list").write_text(f"c *:* {access}\n", encoding="ascii")
    with pytest.raises(NotBarredError, match="lists every device"):
        bar(Group(V1, {V1_DEVICES: tmp_path}), [(MAJOR, 1)])


def test_a_host_of_version_1_makes_the_folder_only_where_something_is_barred(tmp_path: Path) -> None:
    place = Place(V1, {name: tmp_path / name for name in ("pids", V1_DEVICES)})
    for folder in place.folders.values():
        folder.mkdir()
    assert set(make_group(place, "muster-a", HostLimits()).folders) == {"pids"}
    assert set(make_group(place, "muster-b", HostLimits(), bars_devices=True).folders) == {"pids", V1_DEVICES}
