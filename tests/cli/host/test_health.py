"""``muster health``: whether a process of this machine does its work."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from muster.cli.framework.exits import Exit
from muster.db.engine import make_engine
from muster.ports import free_port
from muster.wire.enrolment import PROGRESS_FILE
from tests.cli.command import Command
from tests.patient import PATIENT
from tests.store.stores import ours
from workers.host import progress as launcher

ROOT = Path(__file__).resolve().parents[3]
AT_THE_END = """
import atexit, gc, sys
loaded = {"health.replay.replay", "muster.db.models"}
atexit.register(lambda: print(gc.get_stats()[2]["collections"], *sorted(loaded.intersection(sys.modules))))
from muster.cli import main
main()
"""


REPORT = """
    INSERT INTO loop_progress (loop, instance, component, host, advanced_at, reported_at, limit_s)
    VALUES ('loop-of-it', 'i', :part, :host, clock_timestamp() - make_interval(secs => :age_s), clock_timestamp(), 60)
    ON CONFLICT (loop, instance) DO UPDATE SET advanced_at = excluded.advanced_at
"""


def report(engine: Engine, part: str, age_s: float) -> None:
    with engine.begin() as connection:
        connection.execute(text(REPORT), {"part": part, "host": socket.gethostname(), "age_s": age_s})


@pytest.mark.parametrize(("part", "name"), [("scheduler", "muster-scheduler"), ("worker-control", "muster-control")])
def test_a_process_is_well_while_its_loops_advance(muster: Command, database_url: str, part: str, name: str) -> None:
    def health() -> tuple[int, str]:
        answer = muster.run("health", part, MUSTER_DATABASE_URL=database_url)
        return answer.returncode, answer.stdout + answer.stderr

    code, words = health()
    assert (code, f"no {name} of this machine is connected" in words) == (Exit.FAILED, True)
    engine = make_engine(database_url, application_name=name, limits=PATIENT)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        code, words = health()
        assert (code, f"no {part} of this machine has reported its progress" in words) == (Exit.FAILED, True)
        report(engine, part, 70)
        code, words = health()
        assert (code, "these loops have not advanced: loop-of-it for 7" in words) == (Exit.FAILED, True)
        report(engine, part, 1)
        assert health()[0] == Exit.OK
    engine.dispose()


def test_a_control_worker_that_leaves_events_waiting_is_not_well(muster: Command, database_url: str) -> None:
    engine = make_engine(database_url, application_name="muster-control")
    muster.run("bootstrap", str(muster.folder / "operator.key"), MUSTER_DATABASE_URL=database_url)
    old = """INSERT INTO events (id, at, kind, subject_type, subject_id, payload)
             SELECT 'evt_' || repeat('0', 26), at - interval '10 minutes', kind, subject_type, subject_id, payload
             FROM events LIMIT 1"""
    with engine.begin() as connection:
        connection.execute(text(old))
    report(engine, "worker-control", 1)
    answer = muster.run("health", "worker-control", MUSTER_DATABASE_URL=database_url)
    engine.dispose()
    assert answer.returncode == Exit.FAILED
    assert "an event has waited" in answer.stderr


def test_an_api_that_does_not_answer_is_stated_by_its_address(muster: Command) -> None:
    port = str(free_port())
    answer = muster.run("health", "api", MUSTER_API_PORT=port)
    assert answer.returncode == Exit.FAILED
    assert f"http://127.0.0.1:{port}/readyz does not answer" in answer.stderr


def test_a_content_store_is_well_while_it_answers_also_with_a_full_disk(muster: Command, tmp_path: Path) -> None:
    port = str(free_port())
    assert f"http://127.0.0.1:{port}/healthz does not" in muster.run("health", "store", MUSTER_STORE_PORT=port).stderr
    with ours(tmp_path / "store") as store:
        port = store.url.rpartition(":")[2]
        assert muster.run("health", "store", MUSTER_STORE_PORT=port).stdout == "store: ready\n"
        store.stop()
        store.start(MUSTER_STORE_RESERVE_BYTES=str(1 << 60))
        said = muster.run("health", "store", MUSTER_STORE_PORT=port).stdout
        assert said == "store: ready, but its disk is full: it refuses uploads\n"


def test_an_agent_is_well_while_its_token_is_renewed(muster: Command, tmp_path: Path) -> None:
    settings = {"MUSTER_STATE_DIR": str(tmp_path / "state")}
    assert "has not enrolled" in muster.run("health", "agent", **settings).stderr
    token = tmp_path / "state" / "agent" / "node.token"
    token.parent.mkdir(parents=True)
    token.write_text("mst_x")
    assert "has not marked its progress" in muster.run("health", "agent", **settings).stderr
    (token.parent / PROGRESS_FILE).touch()
    assert muster.run("health", "agent", **settings).returncode == Exit.OK
    os.utime(token, (time.time() - 7200, time.time() - 7200))
    late = muster.run("health", "agent", **settings)
    assert late.returncode == Exit.FAILED
    assert "was not reached" in late.stderr


def test_a_host_worker_is_well_while_it_listens(muster: Command, short_folder: Path) -> None:
    settings = {"MUSTER_STATE_DIR": str(short_folder)}
    assert "no launcher listens" in muster.run("health", "worker-host", **settings).stderr
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(short_folder / "wakeup.sock"))
        assert "has not marked its progress" in muster.run("health", "worker-host", **settings).stderr
        mark = short_folder / launcher.PROGRESS_FILE
        mark.touch()
        os.utime(mark, (time.time() - 3600, time.time() - 3600))
        assert "the launcher has not marked its progress for" in muster.run("health", "worker-host", **settings).stderr
        mark.touch()
        assert muster.run("health", "worker-host", **settings).returncode == Exit.OK
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.recv(1)  # it was not woken
    assert muster.run("health", "worker-host", **settings).returncode == Exit.FAILED


def test_a_part_that_there_is_not_is_refused(muster: Command) -> None:
    answer = muster.run("health", "beat")
    assert answer.returncode == Exit.USAGE
    assert "worker-control" in answer.stderr


def test_a_check_loads_nothing_that_it_does_not_use_and_collects_no_garbage_in_imports(tmp_path: Path) -> None:
    """It runs every few seconds next to each process."""
    variables = {"PATH": os.environ["PATH"], "MUSTER_DATABASE_URL": f"postgresql://127.0.0.1:{free_port()}/muster"}
    answer = subprocess.run(
        [sys.executable, "-c", AT_THE_END, "health", "worker-control"],
        cwd=tmp_path,
        env={**variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (Exit.FAILED, "0\n"), answer.stderr
