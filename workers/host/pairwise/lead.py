"""Lead of a pairwise check: it admits the hosts, sends each round's groups, receives results, and sends verdicts.

It computes nothing and needs no torch, so that it may run anywhere that all hosts reach.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from health.pairwise.check import Assessment, GroupResult, PairwiseLimits, Round, assess
from health.pairwise.proof import Group
from muster.domain.loopback import is_loopback
from muster.wire.meeting import CALLED_OFF, PairwiseOrder, PairwiseResult
from muster.wire.pairwise import LINE_BYTES_MAX, PAIRWISE_PROTOCOL, CallOff, Ended, FromLead, Hello
from workers.host.pairwise.attending import keep_alive

_HELLO_S: Final = 10.0
_LATE_S: Final = 15.0
"""Longest time after its round's end in which a host may answer."""


@dataclass(frozen=True, slots=True)
class Check:
    """Parameters of a check. ``device`` None: GPUs, if every host has some. ``wait_s``: for hosts to arrive.

    ``round_s``: how long one round may take, with the import of torch.
    """

    hosts: tuple[str, ...]
    run: str
    device: Literal["cpu", "cuda"] | None = None
    gather_bytes: int = 16 << 20
    num_gathers: int = 5
    round_s: float = 60.0
    wait_s: float = 120.0
    limits: PairwiseLimits = field(default_factory=PairwiseLimits)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a check. ``absent``: hosts that never arrived. ``device``: the one that was used."""

    assessment: Assessment
    rounds: tuple[Round, ...]
    absent: tuple[str, ...]
    device: Literal["cpu", "cuda"]

    @property
    def is_good(self) -> bool:
        return not (self.absent or self.assessment.bad or self.assessment.undecided or self.assessment.paths)


@dataclass(slots=True)
class _Member:
    """A host that takes part. ``port``: of the store that it would run next."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: str
    port: int
    has_gpu: bool


class Lead:
    """Lead of one check. ``report`` gets a line for each step."""

    def __init__(self, check: Check, report: Callable[[str], None]) -> None:
        self._check = check
        self._report = report
        self._members: dict[str, _Member] = {}
        self._device: Literal["cpu", "cuda"] = "cpu"
        self._all_here = asyncio.Event()
        self._has_begun = False

    async def run(self, listen: tuple[str, int], ready: Callable[[int], None] = lambda _: None) -> Outcome:
        """Run the check. ``ready`` gets the port as soon as hosts may connect.

        Raises:
            OSError: it cannot listen there.
        """
        server = await asyncio.start_server(self._welcome, *listen, limit=LINE_BYTES_MAX)
        try:
            ready(server.sockets[0].getsockname()[1])
            await self._wait()
            self._has_begun = True
            here = [host for host in self._check.hosts if host in self._members]
            self._device = self._check.device or self._common_device(here)
            assessment, rounds = await self._rounds(here)
            absent = tuple(host for host in self._check.hosts if host not in here)
            outcome = Outcome(assessment, tuple(rounds), absent, self._device)
            await asyncio.gather(*(self._dismiss(host, outcome) for host in here))
        finally:
            server.close()
            await asyncio.gather(*(_close(member.writer) for member in self._members.values()))
        return outcome

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._check.wait_s):
                await self._all_here.wait()
        except TimeoutError:
            missing = [host for host in self._check.hosts if host not in self._members]
            self._report(f"did not come within {self._check.wait_s:g} s: {', '.join(missing)}")

    def _common_device(self, here: Sequence[str]) -> Literal["cpu", "cuda"]:
        return "cuda" if here and all(self._members[host].has_gpu for host in here) else "cpu"

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep_alive(writer.get_extra_info("socket"))
        try:
            async with asyncio.timeout(_HELLO_S):
                hello = msgspec.json.decode(await reader.readline(), type=Hello)
        except (TimeoutError, ValueError, OSError, msgspec.MsgspecError):  # it is no host of a check
            await _close(writer)
            return
        why = self._refusal(hello)
        if why is not None:
            with contextlib.suppress(OSError):
                await _send(writer, Ended(outcome="refused", why=why))
            await _close(writer)
            self._report(f"{hello.host} is not let in: {why}")
            return
        gone = self._members.get(hello.host)
        if gone is not None:
            gone.writer.close()
        address = hello.address or writer.get_extra_info("peername")[0]
        self._members[hello.host] = _Member(reader, writer, address, hello.port, hello.has_gpu)
        self._report(f"{hello.host} is here, at {address}")
        if sum(not member.reader.at_eof() for member in self._members.values()) == len(self._check.hosts):
            self._all_here.set()

    def _refusal(self, hello: Hello) -> str | None:
        if hello.protocol != PAIRWISE_PROTOCOL:
            return f"it has version {hello.protocol} of this check, and this is {PAIRWISE_PROTOCOL}"
        if not secrets.compare_digest(hello.run, self._check.run):
            return "it names another run"
        if hello.host not in self._check.hosts:
            return f"it is none of {', '.join(self._check.hosts)}"
        if self._has_begun:
            return "the check has begun without it"
        known = self._members.get(hello.host)
        return None if known is None or known.reader.at_eof() else "a host of that name is here already"

    async def _rounds(self, here: Sequence[str]) -> tuple[Assessment, list[Round]]:
        rounds: list[Round] = []
        self._warn_of_loopback(here)
        while (found := assess(here, rounds, self._check.limits)).next_groups:
            number = len(rounds) + 1
            results = await asyncio.gather(
                *(self._meeting(number, place, group) for place, group in enumerate(found.next_groups))
            )
            rounds.append(tuple(results))
            for result in results:
                self._report(f"round {number}: {in_words(result)}")
        return found, rounds

    def _warn_of_loopback(self, here: Sequence[str]) -> None:
        local = [host for host in here if is_loopback(self._members[host].address)]
        if local and len(local) < len(here):
            self._report(f"{', '.join(local)}: the others cannot reach a loopback address; give it --address")

    async def _meeting(self, number: int, place: int, group: Group) -> GroupResult:
        first = self._members[group[0]]
        address, port = first.address, first.port
        asked = {
            host: PairwiseOrder(
                round=number,
                key=f"pairwise/{self._check.run}/{number}/{place}",
                hosts=group,
                rank=rank,
                address=address,
                port=port,
                device=self._device,
                gather_bytes=self._check.gather_bytes,
                num_gathers=self._check.num_gathers,
                timeout_s=self._check.round_s,
            )
            for rank, host in enumerate(group)
        }
        return _result(group, await self._results(asked))

    async def _results(self, orders: Mapping[str, PairwiseOrder]) -> dict[str, PairwiseResult | None]:
        """Return each host's answer. After one has failed the others need not wait for it."""
        asking = {asyncio.create_task(self._ask(host, told)): host for host, told in orders.items()}
        left, called_off = set(asking), False
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if not called_off and any(_failed(task.result()) for task in done):
                called_off = True
                for task in left:
                    with contextlib.suppress(OSError):
                        await _send(self._members[asking[task]].writer, CallOff())
        return {host: task.result() for task, host in asking.items()}

    async def _ask(self, host: str, order: PairwiseOrder) -> PairwiseResult | None:
        """Return a host's answer; None: it did not arrive, or cannot be read."""
        member = self._members[host]
        try:
            async with asyncio.timeout(order.timeout_s + _LATE_S):
                await _send(member.writer, order)
                met = msgspec.json.decode(await member.reader.readline(), type=PairwiseResult)
                while met.round < order.round:  # an answer that came too late in its own round
                    member.port = met.port
                    met = msgspec.json.decode(await member.reader.readline(), type=PairwiseResult)
        except (TimeoutError, ValueError, OSError, msgspec.MsgspecError):
            return None
        member.port = met.port
        return met if met.round == order.round else None

    async def _dismiss(self, host: str, outcome: Outcome) -> None:
        found = outcome.assessment
        if host in found.bad:
            ended = Ended(outcome="bad", why=found.bad[host])
        elif host in found.undecided:
            ended = Ended(outcome="undecided", why=found.undecided[host])
        else:
            ended = Ended(outcome="cleared")
        try:
            async with asyncio.timeout(_LATE_S):
                await _send(self._members[host].writer, ended)
        except (TimeoutError, OSError):
            self._report(f"{host} did not receive the verdict")


def in_words(result: GroupResult) -> str:
    """Return one group's result, in a line."""
    names = ", ".join(result.hosts)
    if result.silent:
        return f"{names}: no answer from {', '.join(sorted(result.silent))}"
    if result.rate_bytes_per_s is None:
        return f"{names}: failed: {result.why}"
    return f"{names}: {result.rate_bytes_per_s / 1e6:.4g} MB/s"


def _result(group: Group, results: Mapping[str, PairwiseResult | None]) -> GroupResult:
    silent = frozenset(host for host, met in results.items() if met is None)
    whys = [
        f"{host}: {met.why or 'no figure'}"
        for host, met in results.items()
        if met is not None and met.rate_bytes_per_s is None and met.why != CALLED_OFF
    ]
    rates = [met.rate_bytes_per_s for met in results.values() if met is not None and met.rate_bytes_per_s is not None]
    return GroupResult(group, min(rates) if len(rates) == len(group) else None, "; ".join(whys), silent)


def _failed(met: PairwiseResult | None) -> bool:
    return met is None or met.rate_bytes_per_s is None


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close after all sent content, if the peer accepts it in time."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_HELLO_S):
            await writer.wait_closed()


async def _send(writer: asyncio.StreamWriter, message: FromLead) -> None:
    writer.write(msgspec.json.encode(message) + b"\n")
    await writer.drain()
