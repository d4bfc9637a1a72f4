"""``muster job logs``."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.names import JobId
from muster.cli.framework.output import AsJson, json_of, print_line
from muster.cli.framework.profile import open_client
from muster.cli.framework.terminal_text import plain_line
from muster.cli.job.environment_texts import environment_words
from muster.cli.job.job_wait import END_CODES, show_wait, state_line

LOG_POLL_S: Final = 2.0


def logs(
    job_id: JobId,
    rank: Annotated[int | None, typer.Option(min=0, help=parameter_help("stream"))] = None,
    attempt: Annotated[str | None, typer.Option(help=parameter_help("attempt_id"))] = None,
    *,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help=parameter_help("follow", "Until the job ends."))
    ] = False,
    search: Annotated[str | None, typer.Option("--search", "-s", help=parameter_help("contains"))] = None,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help=parameter_help("ignore_case", "In that search."))
    ] = False,
    is_raw: Annotated[
        bool, typer.Option("--raw", help="As the program wrote it, with what may control your terminal.")
    ] = False,
    of_build: Annotated[
        bool, typer.Option("--build", help="What the builds of its environment wrote that failed, instead.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show the ranks' output; a prefix distinguishes several ranks. Colours and all else that controls a terminal is
    left out.
    """
    text_of = _unchanged if is_raw else plain_line
    if of_build:
        return _show_builds(job_id, text_of, as_json=as_json)
    if search is not None and is_followed:
        raise CommandError("a search reads the output so far", "Leave out --follow or --search.", Exit.USAGE)
    if search is not None:
        return _search(job_id, search, rank, attempt, text_of, ignore_case=ignore_case, as_json=as_json)
    if is_followed:
        return follow(job_id, rank, attempt, text_of, as_json=as_json)
    with open_client() as client:
        stream = None if rank is None else str(rank)
        pieces = client.logs(job_id, stream=stream, attempt_id=attempt)
        _print_pieces(pieces, text_of, with_prefix=rank is None, as_json=as_json)
    return Exit.OK


def _show_builds(job_id: str, text_of: Callable[[str], str], *, as_json: bool) -> int:
    """Print the logs of the failed builds of the job's environment, and on the error stream the state of each."""
    with open_client() as client:
        found = client.job_environments(job_id)
    if as_json:
        print_line(json_of(found))
        return Exit.OK
    for build in found["items"]:
        for line in build["log"].splitlines():
            print_line(text_of(line))
        typer.echo(environment_words(build), err=True)
    if not found["items"]:
        typer.echo("no host has asked for an environment of this job yet", err=True)
    return Exit.OK


def _unchanged(line: str) -> str:
    return line


def _search(
    job_id: str,
    text: str,
    rank: int | None,
    attempt: str | None,
    text_of: Callable[[str], str],
    *,
    ignore_case: bool,
    as_json: bool,
) -> int:
    """Search the logs. As for grep, the exit code is 0 if a line was found."""
    if not text:
        raise CommandError("--search is empty", "Give the text as it appears in the line.", Exit.USAGE)
    stream = None if rank is None else str(rank)
    has_found = False
    with open_client() as client:
        lines = client.log_lines(
            job_id, contains=text, ignore_case=ignore_case or None, stream=stream, attempt_id=attempt
        )
        for line in lines:
            has_found = True
            prefix = "" if attempt and rank is not None else f"[{line['attempt_id'][-4:]} {line['stream']}] "
            print_line(json_of(line) if as_json else prefix + text_of(line["text"]))
    return Exit.OK if has_found else Exit.FAILED


def follow(
    job_id: str,
    rank: int | None = None,
    attempt: str | None = None,
    text_of: Callable[[str], str] = plain_line,
    *,
    as_json: bool = False,
) -> int:
    """Follow a job's logs to its end, and return the job's exit code."""
    stream = None if rank is None else str(rank)
    with open_client() as client:
        with _waits_shown(job_id):
            pieces = client.follow_logs(job_id, stream=stream, attempt_id=attempt)
            _print_pieces(pieces, text_of, with_prefix=rank is None, as_json=as_json)
        job = client.job(job_id)
    typer.echo(state_line(job), err=True)
    return END_CODES.get(job["state"], Exit.FAILED)


@contextmanager
def _waits_shown(job_id: str) -> Iterator[None]:
    """Show on the error stream, while logs are followed, why the job waits: its programs cannot report that."""
    is_over = threading.Event()
    teller = threading.Thread(target=_show_waits, args=(job_id, is_over), daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join(LOG_POLL_S)


def _show_waits(job_id: str, is_over: threading.Event) -> None:
    from muster.client.transport import Problem, UnreachableError

    said = ""
    with open_client() as client:
        while not is_over.wait(LOG_POLL_S):
            try:
                said = show_wait(client.job(job_id), said)
            except (Problem, UnreachableError):
                continue  # the followed stream reports it, or connects again


def _print_pieces(pieces: Iterable[Any], text_of: Callable[[str], str], *, with_prefix: bool, as_json: bool) -> None:
    """Print whole lines, each with its stream's name. The last line of an attempt's stream may lack its end.

    Each attempt has a stream of each rank, and each of its hosts a stream ``launcher``.
    """

    def show(stream: str, line: str) -> None:
        print_line(f"[{stream}] {text_of(line)}" if with_prefix else text_of(line))

    rests: dict[tuple[str, str, str], str] = {}
    for piece in pieces:
        if as_json:
            print_line(json_of(piece))
            continue
        source = attempt_id, _, stream = piece["attempt_id"], piece["node_id"], piece["stream"]
        for over in [each for each in rests if each[0] != attempt_id]:  # before the lines of the next attempt
            if rest := rests.pop(over):
                show(over[-1], rest)
        *lines, rests[source] = (rests.get(source, "") + piece["text"]).split("\n")
        for line in lines:
            show(stream, line)
    for (*_, stream), rest in rests.items():
        if rest:
            show(stream, rest)
