"""What ranks say over the socket reaches the disk; what is no message does not, and no rank is held up."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from tests.workers.host.supervisor.attempt_case import Attempt
from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.supervisor.record import train_socket
from workers.host.supervisor.user.redaction import Redactor
from workers.host.training_relay import next_lines

STATES = """
import json, os, socket, sys
channel = socket.socket(socket.AF_UNIX); channel.connect(os.environ["MUSTER_TRAIN_SOCKET"])
def say(**message): channel.sendall(json.dumps(message).encode() + b"\\n")
"""
STATES_STEPS = STATES + (
    "say(type='hello', rank=0)\n"
    "channel.sendall(b'no json\\n[1]\\n' + b'x' * 200_000 + b'\\n')\n"
    "say(type='step', step=1, loss=2.5)\n"
    'channel.sendall(b\'{"type": "to\')\n'
)
STATES_ACTOR_IT_IS = f"""
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", {STATES + "say(type='hello', rank=int(sys.argv[1]))"!r}, str(rank)])
         for rank in (3, 4, 5, 6)]
sys.exit(max(rank.wait() for rank in ranks))
"""
RECEIVES_A_STOP = STATES + (
    "import signal, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True)\n"
    "print('received', channel.makefile().readline(), flush=True)\n"
)
FLOODS = STATES + (
    "line = json.dumps({'type': 'step', 'text': 'x' * 1000}).encode() + b'\\n'\n"
    "for _ in range(5_000): channel.sendall(line)\n"
    "print('done', flush=True)\n"
)


def stated(attempt: Attempt) -> list[dict[str, Any]]:
    lines = (attempt.folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["message"] for line in lines]


def test_messages_are_kept_and_everything_else_is_not(attempt: Attempt) -> None:
    attempt.start(STATES_STEPS)
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0, attempt.log()
    assert stated(attempt) == [{"type": "hello", "rank": 0}, {"type": "step", "step": 1, "loss": 2.5}]


def test_a_command_that_starts_ranks_itself_has_each_of_its_hosts_known_and_no_other(attempt: Attempt) -> None:
    """As mpirun and DeepSpeed do; the command's end is recorded as its first rank's, as before."""
    attempt.start(STATES_ACTOR_IT_IS, node_rank=2, num_nodes=3, ranks_per_node=2)
    assert list(attempt.ended()["ranks"]) == ["4"], attempt.log("4")
    lines = (attempt.folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    known = {line["message"]["rank"]: line["rank"] for line in map(json.loads, lines)}
    assert known == {3: None, 4: 4, 5: 5, 6: None}


def test_a_rank_receives_why_and_until_when_it_has_to_stop(attempt: Attempt) -> None:
    attempt.start(RECEIVES_A_STOP, grace_s=20.0)
    attempt.wait_for_log("up")
    attempt.stop("reclaim", 20.0)
    attempt.ended()
    heard = json.loads(attempt.log().split("received ", 1)[1])
    assert (heard["type"], heard["reason"]) == ("stop", "reclaim")
    record = attempt.read("exit.json")
    assert record["ended_at_ms"] < heard["deadline_unix_ms"] < record["ended_at_ms"] + 25_000


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        ("say(type='hello', rank=0); say(type='outcome', exit='failed', cause='save_failed')", "save_failed"),
        ("say(type='hello', rank=0); say(type='outcome', exit='done', cause=None)", "done"),
        ("say(type='hello', rank=0); say(type='outcome', exit='done'); say(type='hello', rank=0)", "none"),
        ("say(type='hello', rank=0); say(type='outcome', exit='no word, but a text')", "none"),
        ("say(type='hello', rank=0); say(type='outcome', exit=['done'])", "none"),
        ("say(type='outcome', exit='failed', cause='save_failed')", "none"),
        ("say(type='hello', rank=5); say(type='outcome', exit='failed', cause='save_failed')", "none"),
        ("", "none"),
    ],
    ids=["cause", "word", "a later process", "a text", "a list", "no rank", "no rank of this host", "nothing"],
)
def test_the_exit_record_states_the_outcome_of_the_ranks_newest_process(
    attempt: Attempt, lines: str, outcome: str
) -> None:
    attempt.start(f"{STATES}{lines}\nprint('last words'); sys.exit(74)\n")
    rank = attempt.ended()["ranks"]["0"]
    assert (rank["exit_code"], rank["outcome"]) == (74, outcome)
    parsed = parse_exit_record(attempt.read("exit.json"))
    assert parsed.ranks[0].outcome == outcome
    assert classify(parsed, None).cause is (Cause.SAVE_FAILED if outcome == "save_failed" else Cause.USER_ERROR)


def test_a_failed_save_of_a_program_that_ends_with_0_is_recorded_with_its_last_words(attempt: Attempt) -> None:
    failed = "say(type='hello', rank=0); say(type='outcome', exit='failed', cause='save_failed')"
    attempt.start(f"{STATES}{failed}\nprint(os.environ['MUSTER_TAKES_OUTCOME'], 'last words')\n")
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0
    verdict = classify(parse_exit_record(attempt.read("exit.json")), None)
    assert (verdict.cause, verdict.proof) == (
        Cause.SAVE_FAILED,
        "rank 0 ended with code 0: its results could not be saved: 1 last words",
    )


def test_a_flood_neither_blocks_the_rank_nor_the_supervisor(attempt: Attempt) -> None:
    attempt.start(FLOODS)
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0
    assert "done" in attempt.log()
    assert len(stated(attempt)) == 5_000


def test_a_long_runs_steps_leave_room_for_the_word_of_a_checkpoint(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_socket, "MOST_BYTES", 40_000)
    monkeypatch.setattr(train_socket, "KEPT_BYTES", 10_000)
    listening = train_socket.TrainSocket(short_folder, short_folder / "s", {0})
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(str(short_folder / "s"))
        for kind in (*["step", "pace"] * 50, "checkpoint", "outcome"):
            rank.sendall(json.dumps({"type": kind, "text": "x" * 1_000}).encode() + b"\n")
            listening.pump()
        listening.close()
    lines = (short_folder / files.TRAIN).read_text(encoding="utf-8").splitlines()
    kinds = [json.loads(line)["message"]["type"] for line in lines]
    assert kinds[-2:] == ["checkpoint", "outcome"]
    assert 20 < len(kinds) < 30
    assert listening.dropped_lines == 102 - len(kinds)


def test_a_message_of_any_depth_ends_nothing(short_folder: Path) -> None:
    listening = train_socket.TrainSocket(short_folder, short_folder / "s", {0}, Redactor([b"secret-value"]))
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(str(short_folder / "s"))
        for depth in (63, 64, 980, 990, 999):
            rank.sendall(b'{"type": "step", "loss": %s}\n' % (b"[" * depth + b"]" * depth))
        listening.pump()
        listening.close()
    assert len((short_folder / files.TRAIN).read_text(encoding="utf-8").splitlines()) == 1
    assert listening.dropped_lines == 4


def test_what_the_control_plane_has_makes_room_and_the_rest_stays_where_it_was(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_socket, "MOST_BYTES", 400_000)
    monkeypatch.setattr(train_socket, "KEPT_BYTES", 10_000)
    monkeypatch.setattr(train_socket, "REGAIN_PAUSE_NS", 0)
    path = short_folder / files.TRAIN
    listening = train_socket.TrainSocket(short_folder, short_folder / "s", {0})
    seen: list[int] = []
    offset = 0
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(str(short_folder / "s"))
        for step in range(3_000):
            rank.sendall(json.dumps({"type": "step", "step": step, "text": "x" * 1_000}).encode() + b"\n")
            listening.pump()
            if step % 50 == 0:  # as the host worker does, which writes down how far the server has it
                lines, offset = next_lines(path, offset)
                seen += [line.message["step"] for line in lines]
                files.write_json(short_folder / files.RELAYED, {files.RELAYED_TRAINING: offset})
        listening.close()
    while (found := next_lines(path, offset))[0]:
        seen += [line.message["step"] for line in found[0]]
        offset = found[1]
    assert listening.dropped_lines == 0
    assert seen == list(range(3_000))
    assert path.stat().st_size > 3_000_000
    assert path.stat().st_blocks * 512 < 500_000, "what was relayed takes no room"
    first = next_lines(path, 0)[0][0].message["step"]
    assert 0 < first < 3_000, "a server that was restored has it from there on where the file still holds it"


def test_nothing_of_the_socket_is_left(attempt: Attempt) -> None:
    attempt.order(command=[sys.executable, "-c", "import os; print(os.environ['MUSTER_TRAIN_SOCKET'])"])
    supervisor.spawn_supervisor(attempt.folder)
    attempt.ended()
    path = attempt.log().strip()
    assert len(path) < 100
    assert not Path(path).exists()
