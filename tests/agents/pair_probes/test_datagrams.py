"""A sender without a key gets no answer, and no answer is longer than its question."""

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.pair_probes.datagrams import ANSWER, NUM_BYTES, QUESTION, Datagram, is_shaped, opened
from agents.pair_probes.prober import Measured, probe
from agents.pair_probes.responder import Allowance, Responder

KEY = b"k" * 32
OLD = b"o" * 32
NONCE = b"12345678"


@pytest.fixture
def answering() -> Iterator[Responder]:
    responder = Responder("127.0.0.1", 0)
    responder.keys = (OLD, KEY)
    stop = threading.Event()
    thread = threading.Thread(target=responder.run, args=(stop,))
    thread.start()
    yield responder
    stop.set()
    thread.join(10)
    responder.close()


def answers_to(responder: Responder, *contents: bytes, wait_s: float = 0.3) -> list[bytes]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(wait_s)
        for content in contents:
            line.sendto(content, ("127.0.0.1", responder.port))
        found = list[bytes]()
        try:
            while True:
                found.append(line.recv(2048))
        except TimeoutError:
            return found


@given(number=st.integers(0, (1 << 32) - 1), nonce=st.binary(min_size=8, max_size=8))
def test_a_datagram_comes_back_as_it_was_and_under_its_own_key_alone(number: int, nonce: bytes) -> None:
    sealed = Datagram(QUESTION, nonce, number).sealed(KEY)
    assert len(sealed) == NUM_BYTES
    assert opened(sealed, (OLD, KEY), QUESTION) == (Datagram(QUESTION, nonce, number), KEY)
    assert opened(sealed, (OLD,), QUESTION) is None
    assert opened(sealed, (KEY,), ANSWER) is None


@given(st.binary(max_size=200))
def test_whatever_else_comes_is_none(content: bytes) -> None:
    assert opened(content, (KEY,), QUESTION) is None


@given(at=st.integers(0, NUM_BYTES - 1), bit=st.integers(0, 7))
def test_one_flipped_bit_is_seen(at: int, bit: int) -> None:
    changed = bytearray(Datagram(QUESTION, NONCE, 7).sealed(KEY))
    changed[at] ^= 1 << bit
    assert opened(bytes(changed), (KEY,), QUESTION) is None


def test_an_answer_is_as_large_as_its_question_and_signed(answering: Responder) -> None:
    for key in (KEY, OLD):
        (answer,) = answers_to(answering, Datagram(QUESTION, NONCE, 7).sealed(key))
        assert len(answer) == NUM_BYTES
        assert opened(answer, (key,), ANSWER) == (Datagram(ANSWER, NONCE, 7), key)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"MPP1",
        b"x" * NUM_BYTES,
        Datagram(QUESTION, NONCE, 7).sealed(b"s" * 32),
        Datagram(ANSWER, NONCE, 7).sealed(KEY),
        Datagram(QUESTION, NONCE, 7).sealed(KEY) + b"x",
        Datagram(QUESTION, NONCE, 7).sealed(KEY)[:-1],
        b"MPP1" * 400,
    ],
)
def test_what_is_no_signed_question_of_the_right_size_gets_no_answer(answering: Responder, content: bytes) -> None:
    assert answers_to(answering, content) == []


def test_an_answerer_without_keys_answers_none(answering: Responder) -> None:
    answering.keys = ()
    assert answers_to(answering, Datagram(QUESTION, NONCE, 7).sealed(KEY)) == []


def test_beyond_its_rate_it_answers_none_and_later_again() -> None:
    now = [0.0]
    responder = Responder("127.0.0.1", 0, allowance=Allowance(per_s=1.0, at_once=3.0, clock_s=lambda: now[0]))
    responder.keys = (KEY,)
    asked = [Datagram(QUESTION, NONCE, number).sealed(KEY) for number in range(5)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(0.2)
        for question in asked:
            line.sendto(question, ("127.0.0.1", responder.port))
            responder.turn()
        assert [len(line.recv(2048)) for _ in range(3)] == [NUM_BYTES] * 3
        with pytest.raises(TimeoutError):
            line.recv(2048)
        now[0] = 1.5
        line.sendto(asked[0], ("127.0.0.1", responder.port))
        responder.turn()
        assert len(line.recv(2048)) == NUM_BYTES
    responder.close()


def test_questions_that_are_none_use_up_no_allowance() -> None:
    responder = Responder("127.0.0.1", 0, allowance=Allowance(at_once=1.0, clock_s=lambda: 0.0))
    responder.keys = (KEY,)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(5)
        for content in (b"rubbish", Datagram(QUESTION, NONCE, 7).sealed(KEY)):
            line.sendto(content, ("127.0.0.1", responder.port))
            responder.turn()
        assert len(line.recv(2048)) == NUM_BYTES
    responder.close()


def test_a_flood_of_forged_questions_costs_a_peer_none_of_its_answers() -> None:
    responder = Responder("127.0.0.1", 0, allowance=Allowance(at_once=3.0, clock_s=lambda: 0.0))
    responder.keys = (KEY,)
    forged = Datagram(QUESTION, NONCE, 7).sealed(b"s" * 32)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(5)
        for _ in range(1_500):
            line.sendto(forged, ("127.0.0.1", responder.port))
            responder.turn()
        line.sendto(Datagram(QUESTION, NONCE, 8).sealed(KEY), ("127.0.0.1", responder.port))
        responder.turn()
        assert opened(line.recv(2048), (KEY,), ANSWER) == (Datagram(ANSWER, NONCE, 8), KEY)
    responder.close()


def test_a_burst_measures_each_round_trip(answering: Responder) -> None:
    measured = Measured(began_s=0.0)
    probe("127.0.0.1", answering.port, KEY, measured, count=20, spacing_s=0.001)
    values = measured.values(now_s=60.0)
    assert (values["window_s"], values["sent"], values["lost"]) == (60.0, 20, 0)
    assert 0 < values["round_trip_p50_us"] <= values["round_trip_p99_us"] < 1e6


def test_what_is_dropped_on_the_way_is_lost() -> None:
    """Each fourth question, and one whose answer another forged."""
    stop = threading.Event()
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    line.bind(("127.0.0.1", 0))
    line.settimeout(0.1)

    def answer() -> None:
        while not stop.is_set():
            try:
                content, asker = line.recvfrom(2048)
            except TimeoutError:
                continue
            found = opened(content, (KEY,), QUESTION)
            assert found is not None
            number = found[0].number
            key = b"f" * 32 if number == 1 else KEY
            if number % 4 != 3:
                line.sendto(Datagram(ANSWER, found[0].nonce, number).sealed(key), asker)
                line.sendto(Datagram(ANSWER, found[0].nonce, number).sealed(key), asker)  # twice counts once

    thread = threading.Thread(target=answer)
    thread.start()
    measured = Measured(began_s=0.0)
    probe("127.0.0.1", line.getsockname()[1], KEY, measured, count=20, spacing_s=0.001, wait_s=0.3)
    stop.set()
    thread.join(10)
    line.close()
    assert (measured.values(1.0)["sent"], measured.values(1.0)["lost"]) == (20, 6)


def test_where_none_answers_all_is_lost_and_no_latency_is_reported() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))
        port = line.getsockname()[1]
    measured = Measured(began_s=0.0)
    probe("127.0.0.1", port, KEY, measured, count=5, spacing_s=0.001, wait_s=0.2)
    assert measured.values(2.0) == {"window_s": 2.0, "sent": 5.0, "lost": 5.0}
    assert not is_shaped(b"")
