"""A call of the REST API as a description, and how a client gets it as a method: no I/O here.

Each call is described once, by a function in ``jobs``, ``gpus``, ``fleet`` or ``tenants`` that is decorated with its
kind of answer: ``answered`` (one object), ``listed`` (all objects of all pages), ``walked`` (the same one by one) or
``followed`` (a stream). ``RestClient`` and ``AsyncRestClient`` run the very same descriptions.
"""

import functools
import uuid
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypedDict, TypeVar, overload
from urllib.parse import quote


class Holder(TypedDict, total=False):
    """Conditions on the job that has GPUs of what is listed."""

    tenant_id: str | None
    tier: str | None


class Within(TypedDict, total=False):
    """Bounds in time (RFC 3339), at or after ``since`` and before ``until``, and the order of a list."""

    since: str | None
    until: str | None
    order: str | None


P = ParamSpec("P")
T = TypeVar("T")

READ: Final = "GET"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. ``path`` is the API's own template; ``answer``: what the answer's JSON is, ``str`` for plain text.

    ``is_repeatable``: nothing happens twice when it is sent again. ``item``: what a page holds, of a call that walks.
    ``ends_with``: the event that ends a stream. ``content``: a body that is JSON already, instead of ``body``.
    ``answer_s``: how long the server may work on it; None: as long as on any other.
    """

    method: str
    path: str
    answer: type[Any]
    path_values: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content: bytes | None = None
    is_repeatable: bool = True
    item: type[T] | None = None
    ends_with: str | None = None
    answer_s: float | None = None

    @property
    def url(self) -> str:
        """The path with its values in it."""
        return self.path.format_map({name: quote(value, safe="") for name, value in self.path_values.items()})

    def request(self, **more: Any) -> dict[str, Any]:
        """Return the request for an HTTP client, without method and URL. ``more``: parameters of the query."""
        given = {name: _text(value) for name, value in {**self.query, **more}.items() if value is not None}
        sent: dict[str, Any] = {"params": given, "headers": {k: v for k, v in self.headers.items() if v is not None}}
        if self.content is not None:
            headers = {**sent["headers"], "Content-Type": "application/json"}
            return {**sent, "headers": headers, "content": self.content}
        return sent if self.body is None else {**sent, "json": self.body}


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def read(
    path: str, answer: type[T], path_values: Mapping[str, str] | None = None, *, query: Mapping[str, Any] | None = None
) -> Call[T]:
    """Return a call that changes nothing."""
    return Call(READ, path, answer, path_values or {}, query or {})


def pages(
    path: str,
    page: type[Any],
    item: type[T],
    path_values: Mapping[str, str] | None = None,
    *,
    query: Mapping[str, Any] | None = None,
) -> Call[T]:
    """Return a call whose answer is a ``page`` of items, to be walked to its end."""
    return Call(READ, path, page, path_values or {}, query or {}, item=item)


def feed(
    path: str,
    item: type[T],
    path_values: Mapping[str, str] | None = None,
    *,
    query: Mapping[str, Any],
    ends_with: str | None = None,
) -> Call[T]:
    """Return a call that is answered by server-sent events, each of which holds an item."""
    return Call(READ, path, item, path_values or {}, query, {"Last-Event-ID": None}, ends_with=ends_with)


def post_query(path: str, answer: type[T], *, body: Mapping[str, Any]) -> Call[T]:
    """Return a call whose query is too large for the URL: it changes nothing."""
    return Call("POST", path, answer, body=body)


def change(
    method: str,
    path: str,
    answer: type[T],
    path_values: Mapping[str, str] | None = None,
    *,
    body: Mapping[str, Any] | None,
    dry_run: bool,
    if_match: str | None = None,
    key: str | None = None,
) -> Call[T]:
    """Return a change under an Idempotency-Key. ``if_match``: it applies only to an object at that version."""
    headers = {"Idempotency-Key": key or str(uuid.uuid4()), "If-Match": if_match}
    return Call(method, path, answer, path_values or {}, {"dry_run": dry_run or None}, headers, body)


def etag(version: int | None) -> str | None:
    """Return a version in the form of If-Match."""
    return None if version is None else f'"v{version}"'


def change_once(
    path: str,
    answer: type[T],
    path_values: Mapping[str, str] | None = None,
    *,
    body: Mapping[str, Any] | None,
    dry_run: bool,
    if_match: str | None = None,
) -> Call[T]:
    """Return a change with a secret in it or in its answer: no key keeps it, so it is never sent twice."""
    query, headers = {"dry_run": dry_run or None}, {"If-Match": if_match}
    return Call("POST", path, answer, path_values or {}, query, headers, body, is_repeatable=False)


def rest_of(page: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters for the items after ``page``; None after the last page."""
    if page.get("next_cursor") is not None:
        return {"cursor": page["next_cursor"]}
    if page.get("next_after") is not None and page["items"]:
        return {"after": page["next_after"]}
    return None


class SyncCaller:
    """Runs descriptions and waits."""

    @abstractmethod
    def _answer(self, call: Call[T]) -> T: ...

    @abstractmethod
    def _list(self, call: Call[T]) -> list[T]: ...

    @abstractmethod
    def _walk(self, call: Call[T]) -> Iterator[T]: ...

    @abstractmethod
    def _follow(self, call: Call[T]) -> Iterator[T]: ...


class AsyncCaller:
    """Runs descriptions in an event loop."""

    @abstractmethod
    async def _answer(self, call: Call[T]) -> T: ...

    @abstractmethod
    async def _list(self, call: Call[T]) -> list[T]: ...

    @abstractmethod
    def _walk(self, call: Call[T]) -> AsyncIterator[T]: ...

    @abstractmethod
    def _follow(self, call: Call[T]) -> AsyncIterator[T]: ...


class DescribedCall(Generic[P, T]):
    """A description as an attribute of a client's class; of a client it is a method that runs it."""

    runner: str

    def __init__(self, describe: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__

    def _bound(self, client: Any) -> Any:
        run = getattr(client, self.runner)

        @functools.wraps(self.describe)
        def method(*values: P.args, **named: P.kwargs) -> Any:
            return run(self.describe(client, *values, **named))

        return method


class answered(DescribedCall[P, T]):  # noqa: N801  # reads as the decorator that it is
    """The one object that the answer is."""

    runner = "_answer"

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: SyncCaller, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncCaller, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else self._bound(client)


class listed(DescribedCall[P, T]):  # noqa: N801  # reads as the decorator that it is
    """Every item of every page."""

    runner = "_list"

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: SyncCaller, owner: type) -> Callable[P, list[T]]: ...
    @overload
    def __get__(self, client: AsyncCaller, owner: type) -> Callable[P, Awaitable[list[T]]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else self._bound(client)


class _Iterated(DescribedCall[P, T]):
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: SyncCaller, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: AsyncCaller, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else self._bound(client)


class walked(_Iterated[P, T]):  # noqa: N801  # reads as the decorator that it is
    """Item by item, page by page, as they are taken."""

    runner = "_walk"


class followed(_Iterated[P, T]):  # noqa: N801  # reads as the decorator that it is
    """Items as they happen. Resumes where the connection broke, and repeats none."""

    runner = "_follow"
