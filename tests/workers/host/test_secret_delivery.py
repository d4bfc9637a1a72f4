"""What a host does with each answer to its question for secrets: ask again, or end the attempt with the reason."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.client.host import HostClient
from muster.domain.ids import AttemptId, Fence
from muster.domain.lifecycle.host import HostRecord
from tests.recorded_server import Answer, problem, serving
from workers.host.attempt_folder import AttemptFolder
from workers.host.secret_delivery import GIVES_UP_AFTER_MS, LONGEST_PAUSE_MS, SecretDelivery
from workers.host.supervisor.user import sealed_secrets

RECORD = HostRecord(AttemptId("att_1"), Fence(3), "boot-1")
LATER_MS = 10 * GIVES_UP_AFTER_MS


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[AttemptFolder]:
    found = AttemptFolder(tmp_path, RECORD.attempt_id)
    found.path.mkdir(parents=True)
    (found.path / "order.json").write_text(json.dumps({"secrets": {"names": ["hf"], "sealed": ["hf"]}}))
    yield found
    sealed_secrets.remove(found.path)


def starts(folder: AttemptFolder, *answers: Answer, step_ms: int = LATER_MS) -> list[bool]:
    """Ask once for each of ``answers``, with ``step_ms`` between. Returns whether the supervisor may start."""
    now_ms = [0]
    with serving(lambda _requested, number: answers[number]) as server:
        client = HostClient(server.url, "mst_node")
        delivery = SecretDelivery(client, "node_1", "boot-1", lambda: now_ms[0])
        found = []
        for _ in answers:
            found.append(delivery.are_here(RECORD, folder))
            now_ms[0] += step_ms
        client.close()
        assert len(server.requested) == len(answers)
    return found


BY_A_PROXY = [Answer(status, raw=b"<html>", headers={"Content-Type": "text/html"}) for status in (502, 503, 504, 404)]
MAY_PASS = [problem(404, "not_found"), problem(429, "rate_limited"), problem(503, "unavailable"), problem(500, "x")]


@pytest.mark.parametrize("fault", [*BY_A_PROXY, *MAY_PASS, problem(408, "x"), problem(425, "x"), problem(409, "x")])
def test_a_fault_that_may_pass_is_tried_again_for_as_long_as_the_attempt_has(
    folder: AttemptFolder, fault: Answer
) -> None:
    assert starts(folder, fault, fault, fault) == [False, False, False]
    assert not sealed_secrets.is_whole(folder.path)


@pytest.mark.parametrize("status", [400, 401, 403, 422])
def test_a_refusal_is_the_attempts_end_at_once(folder: AttemptFolder, status: int) -> None:
    assert starts(folder, problem(status, "refused", detail="it is refused")) == [True]
    with pytest.raises(OSError, match="it is refused"):
        sealed_secrets.value_of(folder.path, "hf")


def test_keys_that_cannot_be_used_are_given_up_after_their_time_alone(folder: AttemptFolder) -> None:
    unusable = problem(503, "secret_key_unusable", detail="the key k1 is needed")
    tries = [problem(503, "unavailable"), problem(502, "x"), unusable, unusable, unusable, unusable]
    assert GIVES_UP_AFTER_MS <= 3 * LONGEST_PAUSE_MS
    assert starts(folder, *tries, step_ms=LONGEST_PAUSE_MS) == [False] * 5 + [True]
    with pytest.raises(OSError, match="the key k1 is needed"):
        sealed_secrets.value_of(folder.path, "hf")


def test_an_answer_to_another_question_is_the_attempts_end(folder: AttemptFolder) -> None:
    foreign = {"public_key": "AAAA", "sealed": "AAAA", "missing": []}
    assert starts(folder, Answer(200, foreign)) == [True]
    with pytest.raises(OSError, match="was not sealed to the key of this question"):
        sealed_secrets.value_of(folder.path, "hf")
