"""The lead of hosts that a test plays message by message: which hosts it lets in, and what it concludes."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from muster.wire.meeting import PairwiseOrder, PairwiseResult
from muster.wire.pairwise import PAIRWISE_PROTOCOL, CallOff, Ended, FromLead, Hello
from tests.workers.host.pairwise.gang import check_of
from workers.host.pairwise.lead import Lead, Outcome

PATIENCE_S = 100.0
RATE = 1e9


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def receives(self) -> FromLead:
        async with asyncio.timeout(PATIENCE_S):
            told: FromLead = msgspec.json.decode(await self.reader.readline(), type=FromLead)
        return told

    def states(self, message: PairwiseResult | Hello | bytes) -> None:
        self.writer.write(message if isinstance(message, bytes) else msgspec.json.encode(message) + b"\n")

    async def meets(self, rate: float | None = RATE, why: str = "") -> PairwiseOrder:
        told = await self.receives()
        assert isinstance(told, PairwiseOrder)
        self.states(PairwiseResult(round=told.round, rate_bytes_per_s=rate, why=why, port=9))
        return told


Join = Callable[..., Awaitable[Host]]


def led(
    hosts: list[str],
    play: Callable[[Join], Coroutine[Any, Any, None]],
    *,
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """``play`` has a way to join; both must come to their ends."""

    async def both() -> Outcome:
        joined: list[Host] = []
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def join(name: str, *, run: str = "a-test", protocol: int = PAIRWISE_PROTOCOL) -> Host:
            host = Host(name, *await asyncio.open_connection("127.0.0.1", await port))
            joined.append(host)
            host.states(Hello(protocol=protocol, run=run, host=name, port=9, has_gpu=False))
            return host

        lead = Lead(check_of(hosts), report)
        found = await asyncio.gather(lead.run(("127.0.0.1", 0), port.set_result), play(join))
        for host in joined:
            host.writer.close()
            with contextlib.suppress(OSError):
                await host.writer.wait_closed()
        outcome: Outcome = found[0]
        return outcome

    return asyncio.run(both())


def test_a_gang_meets_once_and_each_host_receives_its_own_end() -> None:
    async def play(join: Join) -> None:
        hosts = [await join(name) for name in ("a", "b", "c", "d")]
        told = await asyncio.gather(*(host.meets() for host in hosts))
        assert [(each.hosts, each.rank) for each in told] == [
            (("a", "b"), 0),
            (("a", "b"), 1),
            (("c", "d"), 0),
            (("c", "d"), 1),
        ]
        assert {each.key for each in told} == {"pairwise/a-test/1/0", "pairwise/a-test/1/1"}
        assert await asyncio.gather(*(host.receives() for host in hosts)) == [Ended(outcome="cleared")] * 4

    outcome = led(["a", "b", "c", "d"], play)
    assert outcome.is_good
    assert len(outcome.rounds) == 1


def test_the_others_of_a_group_are_called_off_once_one_has_failed() -> None:
    async def play(join: Join) -> None:
        first, second = await join("a"), await join("b")
        await first.meets(None, "no torch")
        assert isinstance(await second.receives(), PairwiseOrder)
        assert isinstance(await second.receives(), CallOff)
        second.states(PairwiseResult(round=1, why="called off", port=9))
        ended = [await first.receives(), await second.receives()]
        assert [each.outcome for each in ended if isinstance(each, Ended)] == ["undecided"] * 2

    outcome = led(["a", "b"], play)
    assert outcome.rounds[0][0].why == "a: no torch"


async def attends(host: Host) -> None:
    """As a host that works does, to the end."""
    while not isinstance(told := await host.receives(), Ended):
        if isinstance(told, PairwiseOrder):
            host.states(PairwiseResult(round=told.round, rate_bytes_per_s=RATE, port=9))


def test_what_states_otherwise_goes_or_answers_another_round_is_queried_again_and_then_named() -> None:
    async def play(join: Join) -> None:
        hosts = [await join(name) for name in "abcdefgh"]
        for host in hosts[:6]:
            assert isinstance(await host.receives(), PairwiseOrder)
        hosts[0].states(b"what?\n")
        hosts[2].writer.close()
        hosts[4].states(PairwiseResult(round=7, rate_bytes_per_s=RATE, port=9))
        for host in (hosts[1], hosts[3], hosts[5]):
            assert isinstance(await host.receives(), CallOff)
            host.states(PairwiseResult(round=1, why="called off", port=9))
        others = [asyncio.create_task(attends(host)) for host in hosts if host.name in "bdfgh"]
        for host, answer in (
            (hosts[0], b"what?\n"),
            (hosts[4], PairwiseResult(round=7, rate_bytes_per_s=RATE, port=9)),
        ):
            told = await host.receives()
            assert isinstance(told, PairwiseOrder)
            assert told.round == 2
            host.states(answer)
        await asyncio.gather(*others)

    outcome = led(list("abcdefgh"), play)
    assert outcome.assessment.bad == dict.fromkeys("ace", "was silent in rounds 1, 2")
    assert set(outcome.assessment.cleared) == set("bdfgh")


def test_an_answer_that_comes_a_round_late_is_no_second_silence() -> None:
    async def play(join: Join) -> None:
        hosts = [await join(name) for name in "abcd"]
        others = [asyncio.create_task(attends(host)) for host in hosts[1:]]
        assert isinstance(await hosts[0].receives(), PairwiseOrder)
        hosts[0].states(b"what?\n")
        told = await hosts[0].receives()
        assert isinstance(told, PairwiseOrder)
        hosts[0].states(PairwiseResult(round=1, rate_bytes_per_s=RATE, port=9))
        hosts[0].states(PairwiseResult(round=told.round, rate_bytes_per_s=RATE, port=9))
        await asyncio.gather(attends(hosts[0]), *others)

    assert led(list("abcd"), play).is_good


def test_what_is_let_in_and_what_is_shown_why_not() -> None:
    async def play(join: Join) -> None:
        first = await join("a")
        for stranger, why in (
            (await join("b", run="another"), "it names another run"),
            (await join("b", protocol=99), "it has version 99"),
            (await join("z"), "it is none of a, b"),
            (await join("a"), "a host of that name is here already"),
        ):
            told = await stranger.receives()
            assert isinstance(told, Ended)
            assert (told.outcome, told.why.startswith(why)) == ("refused", True), told
        second = await join("b")
        assert isinstance(await first.receives(), PairwiseOrder)
        late = await (await join("a")).receives()
        assert late == Ended(outcome="refused", why="the check has begun without it")
        first.states(PairwiseResult(round=1, rate_bytes_per_s=RATE, port=9))
        await second.meets()

    assert led(["a", "b"], play).is_good


def test_a_host_that_went_before_the_check_began_may_come_again() -> None:
    said: asyncio.Queue[str] = asyncio.Queue()

    async def play(join: Join) -> None:
        (await join("a")).writer.close()
        assert (await said.get()).startswith("a is here")
        again = await join("a")
        while not (await said.get()).startswith("a is here"):  # it may not be known yet that the first has gone
            again = await join("a")
        other = await join("b")
        await asyncio.gather(again.meets(), other.meets())

    assert led(["a", "b"], play, report=said.put_nowait).is_good
