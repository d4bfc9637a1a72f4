"""A program in a container: the engine's command line word by word, and a real engine where the machine has one."""

import os
import shutil
import stat
from pathlib import Path

import msgspec
import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from muster.wire.host import Order
from tests.workers.host.supervisor.attempt_case import Attempt
from workers.host import supervisor
from workers.host.bundle_order import BundlesHost, bundle_of
from workers.host.supervisor.children import StartError
from workers.host.supervisor.container.containers import (
    DOCKER,
    ENROOT,
    PODMAN,
    Engine,
    HostShare,
    command_of,
    engine_command,
    find_engine,
    write_environment,
)
from workers.host.supervisor.container.end import removal
from workers.host.supervisor.container.mounts import MountError
from workers.host.supervisor.order import program_environment, read_order
from workers.host.supervisor.order_parts import Container, HostLimits, Mount

GPUS = ("GPU-aa", "GPU-bb")
IMAGE = os.environ.get("TEST_CONTAINER_IMAGE", "")
"""An image with a shell that the machine's engine already has."""


def _words(
    kind: str, image: str = "gpt", limits: HostLimits | None = None, mounts: list[Mount] | None = None
) -> list[str]:
    share = HostShare(
        mounts or [Mount("/data"), Mount("/out", "/results", read_only=False)],
        gpus=GPUS,
        devices=["/dev/infiniband/uverbs0"],
        limits=limits or HostLimits(),
        ulimits=["--ulimit=nofile=1024:4096"],
        user="7:8",
    )
    return engine_command(
        Engine(kind, f"/usr/bin/{kind}"),
        Container(image),
        ["python3", "-u", "train.py; id"],
        share,
        name="muster-att_1-0",
        folder=Path("/att"),
        variables=["KEY"],
        working_dir="/work",
    )


def test_the_command_line_of_podman() -> None:
    assert _words(PODMAN, limits=HostLimits(1 << 30, 64, 2.5)) == [
        *("/usr/bin/podman", "run", "--rm", "--name=muster-att_1-0", "--cidfile=/att/container.id", "--pull=missing"),
        *("--network=host", "--ipc=host", "--pid=host", "--user=7:8", "--workdir=/work"),
        *("--cap-drop=ALL", "--security-opt=no-new-privileges", "--env-file=/att/container.env"),
        *("--pidfile=/att/container.pid", "--ulimit=nofile=1024:4096", "--entrypoint="),
        "--mount=type=bind,source=/data,target=/data,readonly",
        "--mount=type=bind,source=/out,target=/results",
        *("--device=nvidia.com/gpu=GPU-aa", "--device=nvidia.com/gpu=GPU-bb", "--device=/dev/infiniband/uverbs0"),
        *("--pids-limit=64", "--memory=1073741824", "--memory-swap=1073741824", "--cpus=2.5"),
        *("gpt", "python3", "-u", "train.py; id"),
    ]


def test_docker_differs_in_its_words_for_gpus() -> None:
    differing = [word for word in _words(DOCKER) if word not in _words(PODMAN)]
    assert differing == ["/usr/bin/docker", '--gpus="device=GPU-aa,GPU-bb"']


def test_the_command_line_of_enroot() -> None:
    assert _words(ENROOT, "/srv/gpt.sqsh") == [
        *("/usr/bin/enroot", "start", "--mount=/data:/data:none:x-create=auto,bind,ro", "--mount=/out:/results"),
        *("--env=KEY", "/srv/gpt.sqsh", "env", "-C", "/work", "python3", "-u", "train.py; id"),
    ]


@pytest.mark.parametrize("kind", [PODMAN, DOCKER, ENROOT])
@pytest.mark.parametrize("path", ["/a,readonly", "/a:/b", '/a"', "/a\nb"])
def test_no_separator_reaches_a_mount(kind: str, path: str) -> None:
    for mount in (Mount(path), Mount("/data", path)):
        with pytest.raises(MountError, match="comma, colon, quote or control character"):
            _words(kind, mounts=[mount])


def test_what_the_program_finds_is_readable_to_its_user_alone(tmp_path: Path) -> None:
    path = write_environment(tmp_path, {"TOKEN": "s3cret =#", "EMPTY": ""})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "TOKEN=s3cret =#\nEMPTY=\n"


@pytest.mark.parametrize(
    ("image", "engine", "has", "found"),
    [
        ("gpt", None, (DOCKER, PODMAN), PODMAN),
        ("gpt", None, (DOCKER,), DOCKER),
        ("gpt", DOCKER, (DOCKER, PODMAN), DOCKER),
        ("/srv/gpt.sqsh", None, (DOCKER, ENROOT), ENROOT),
    ],
)
def test_the_engine_is_the_one_named_or_what_the_host_has(
    tmp_path: Path, image: str, engine: str | None, has: tuple[str, ...], found: str
) -> None:
    for name in has:
        (tmp_path / name).symlink_to("/bin/true")
    assert find_engine(Container(image, engine), str(tmp_path)).kind == found


def test_a_host_without_the_engine_states_which_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no container engine for the job: podman nor docker is not on its path"):
        find_engine(Container("gpt"), str(tmp_path))


def test_an_engine_that_is_missing_is_the_hosts_fault(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(attempt.folder / "nothing"))
    attempt.order(command=["id"], container={"image": "gpt"})
    supervisor.spawn_supervisor(attempt.folder)
    verdict = classify(parse_exit_record(attempt.ended()), None)
    assert verdict.cause is Cause.LAUNCH_FAILED
    assert "this host has no container engine for the job" in verdict.proof


def test_a_mount_that_is_missing_or_leads_elsewhere_is_the_tenants_fault(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "podman").symlink_to("/bin/true")
    (tmp_path / "data").symlink_to("/etc")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    attempt.order(command=["id"], container={"image": "gpt", "mounts": [{"source": str(tmp_path / "data")}]})
    supervisor.spawn_supervisor(attempt.folder)
    verdict = classify(parse_exit_record(attempt.ended()), None)
    assert verdict.cause is Cause.USER_ERROR
    assert "is a link to /etc; name that one" in verdict.proof


@pytest.mark.parametrize("image", ["gpt", "/srv/gpt.sqsh"])
@pytest.mark.parametrize(
    ("named", "is_mounted"), [("copies", True), ("missing", False), (None, False)], ids=["there", "missing", "unset"]
)
def test_the_hosts_folder_for_copies_is_mounted_and_without_one_the_program_is_notified_of_none(
    attempt: Attempt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: str,
    named: str | None,
    *,
    is_mounted: bool,
) -> None:
    for engine in (PODMAN, ENROOT):
        (tmp_path / engine).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "copies").mkdir()
    told = {} if named is None else {"MUSTER_SCRATCH_DIR": str(tmp_path / named)}
    attempt.order(command=["id"], container={"image": image}, env=told)
    contained = command_of(read_order(attempt.folder), attempt.folder, {**told, "KEY": "1"}, ["id"])
    place = tmp_path / "copies"
    mounts = {f"--mount=type=bind,source={place},target={place}", f"--mount={place}:{place}"}
    assert len(mounts.intersection(contained.command)) == is_mounted
    found = f"MUSTER_SCRATCH_DIR={place if is_mounted else ''}"
    if image == "gpt":
        assert found in (attempt.folder / "container.env").read_text(encoding="utf-8").splitlines()
    else:
        assert contained.environment["MUSTER_SCRATCH_DIR"] == found.partition("=")[2]
        assert "--env=MUSTER_SCRATCH_DIR" in contained.command


def _engine() -> str | None:
    return next((kind for kind in (PODMAN, DOCKER) if shutil.which(kind)), None)


needs_an_engine = pytest.mark.skipif(
    not (IMAGE and _engine()),
    reason="NO CONTAINER RUNS HERE: it takes podman or docker, and TEST_CONTAINER_IMAGE, an image with a shell",
)


@needs_an_engine
def test_a_program_runs_in_a_real_container_and_leaves_none(attempt: Attempt) -> None:
    script = 'echo "$GREETING $MUSTER_JOB_ID $RANK of $WORLD_SIZE"; pwd; exit 3'
    attempt.order(command=["/bin/sh", "-c", script], container={"image": IMAGE}, env={"GREETING": "a b"})
    supervisor.spawn_supervisor(attempt.folder)
    record = attempt.ended(300)
    assert f"a b job_test 0 of 1\n{attempt.folder}\n" in attempt.log()
    assert (record["launcher_exit_code"], record["spawn_error"]) == (3, None)
    assert attempt.read("clean.json")["clean"]


@needs_an_engine
def test_a_container_that_ignores_its_stop_is_ended_at_the_deadline(attempt: Attempt) -> None:
    script = "trap '' TERM; echo up; while true; do sleep 1; done"
    attempt.order(command=["/bin/sh", "-c", script], container={"image": IMAGE})
    supervisor.spawn_supervisor(attempt.folder)
    attempt.wait_for_log("up", timeout_s=300)
    attempt.stop("cancel", after_s=0.5)
    assert attempt.ended(300)["stop_reason"] == "cancel"
    assert attempt.read("clean.json")["clean"]
    assert not attempt.processes()


@needs_an_engine
def test_a_program_that_the_image_lacks_is_the_tenants_fault(attempt: Attempt) -> None:
    attempt.order(command=["no-such-program"], container={"image": IMAGE})
    supervisor.spawn_supervisor(attempt.folder)
    verdict = classify(parse_exit_record(attempt.ended(300)), None)
    assert verdict.cause is Cause.USER_ERROR, verdict.proof
    assert "no-such-program" in verdict.proof


def test_a_removal_waits_for_none() -> None:
    assert removal(Engine(PODMAN, "/p"), "muster-a-0") == ["/p", "rm", "--force", "--time=0", "--ignore", "muster-a-0"]
    assert removal(Engine(DOCKER, "/d"), "muster-a-0") == ["/d", "rm", "--force", "muster-a-0"]


@pytest.mark.parametrize("image", ["gpt", "/srv/gpt.sqsh"])
def test_the_bundles_folder_is_the_working_folder_of_a_container(
    tmp_path: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    for engine in (PODMAN, ENROOT):
        (tmp_path / engine).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    own = {"launcher": "torchrun", "python": None, "working_dir": None, "container": {"image": image, "user": "7:8"}}
    order = msgspec.convert({**SENT, **own, "attempt_id": attempt.folder.name}, Order)
    host = BundlesHost(tmp_path, "http://127.0.0.1:1", tmp_path / "key", None, 1)
    attempt.order(
        launcher="torchrun", container={"image": image}, **bundle_of(order, host, attempt.folder, {}, "python3")
    )
    read = read_order(attempt.folder)
    assert read.bundle is not None
    assert read.bundle["owner"] == [7, 8]
    scratch = tmp_path / "scratch"
    environment = program_environment(read, attempt.folder, scratch)
    assert (environment["MUSTER_BUNDLE"], environment["MUSTER_BUNDLE_DIR"]) == ("0a" * 32, "/muster/bundle")
    contained = command_of(read, attempt.folder, environment, ["id"])
    source = tmp_path / "work" / attempt.folder.name
    mounts = {f"--mount=type=bind,source={source},target=/muster/bundle", f"--mount={source}:/muster/bundle"}
    assert len(mounts.intersection(contained.command)) == 1
    assert {"--workdir=/muster/bundle", "-C"} & set(contained.command)
    assert "/muster/bundle" in " ".join(contained.command)
    assert read.script == "/muster/bundle/src/train.py"


SENT: dict[str, object] = {
    "job_id": "job_1",
    "fence": 1,
    "node_rank": 0,
    "num_nodes": 1,
    "ranks_per_node": 1,
    "gpus": [],
    "script": "src/train.py",
    "args": [],
    "argv": [],
    "env": {},
    "rendezvous": {"host": "127.0.0.1", "port": 1},
    "wall_time_s": None,
    "grace_s": 1.0,
    "kill_grace_s": 1.0,
    "log_limit_bytes_per_stream": 1 << 20,
    "bundle": {"digest": "0a" * 32, "tenant_id": "ten_1", "fetch_s": 1.0},
}
"""An order as the control plane sends it."""
