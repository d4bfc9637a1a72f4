"""The waiting and the asynchronous client behind one face, so that one statement is made of both."""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from muster.client import AsyncRestClient, RestClient

Ask = Callable[[str, Callable[[Any], Any]], Any]
"""(the server's URL, what to ask of a client) → the result; of an iterator, the items as a list."""


def ask_waiting(url: str, work: Callable[[Any], Any], *, at_most: int | None = None) -> Any:
    with RestClient(url, "mst_x") as client:
        found = work(client)
        return list(islice(found, at_most)) if hasattr(found, "__next__") else found


def ask_asynchronously(url: str, work: Callable[[Any], Any], *, at_most: int | None = None) -> Any:
    async def main() -> Any:
        async with AsyncRestClient(url, "mst_x") as client:
            found = work(client)
            if not hasattr(found, "__anext__"):
                return await found
            items: list[Any] = []
            async for item in found:
                items.append(item)
                if len(items) == at_most:
                    break
            await found.aclose()
            return items

    return asyncio.run(main())


both_clients = pytest.mark.parametrize("ask", [ask_waiting, ask_asynchronously], ids=["waiting", "asynchronous"])
