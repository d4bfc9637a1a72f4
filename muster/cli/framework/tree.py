"""The command's tree, each branch of which is imported on its first use: ``muster --help`` imports none."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup

from muster.cli.framework.installed import Part, has, missing_words

_MOST_MEANT: Final = 3


@dataclass(frozen=True, slots=True)
class Branch:
    """Branch of the tree. ``room``: module and name of a Typer application or function, such as
    ``muster.cli.job.jobs:app``.

    ``words`` stand in the root's help; the branch itself has the same text (held by a test). ``example``: of a
    function, which has no group to name it. ``needs``: the part of Muster that must be installed; None: it is in each
    installation that has the command.
    """

    room: str
    words: str
    panel: str
    example: str | None = None
    needs: Part | None = None

    @property
    def is_installed(self) -> bool:
        return self.needs is None or has(self.needs)


class Nouns(TyperGroup):
    """A group that lists its commands if an unknown one is named."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            meant = _meant(ctx, args[0], list(self.commands)) or f"There are {', '.join(self.commands)}."
            ctx.fail(f"There is no command {args[0]!r}. {meant}")
        return super().resolve_command(ctx, args)


class LazyGroup(TyperGroup):
    """A group whose branches are named in ``branches``. A branch that is not installed is not listed."""

    branches: ClassVar[Mapping[str, Branch]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._is_naming = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # the base's signature
        return [name for name, branch in self.branches.items() if branch.is_installed]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # the base's signature
        branch = self.branches.get(cmd_name)
        if branch is None:
            return None
        if self._is_naming:
            return TyperCommand(cmd_name, help=branch.words, rich_help_panel=branch.panel)
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _loaded(cmd_name, branch)
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.branches and not args[0].startswith("-"):
            meant = _meant(ctx, args[0], self.list_commands(ctx)) or "`muster --help` lists them."
            ctx.fail(f"There is no command {args[0]!r}. {meant}")
        branch = self.branches.get(args[0]) if args else None
        if branch is not None and branch.needs is not None and not branch.is_installed:
            ctx.fail(missing_words(f"`muster {args[0]}`", branch.needs))
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._naming():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._naming():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Use the branches' names and descriptions alone, and import nothing."""
        self._is_naming = True
        try:
            yield
        finally:
            self._is_naming = False


def _meant(ctx: Any, word: str, own: list[str]) -> str | None:
    """Return the question for commands like ``word``: first of its own group, then of the whole tree, which is imported
    for it. A command of that very name elsewhere comes before one that is only like it here.
    """
    like = [f"{ctx.command_path} {name}" for name in get_close_matches(word, own, n=_MOST_MEANT)]
    is_plural = bool(get_close_matches(word, own, n=1, cutoff=0.85))
    if not like or (ctx.parent is None and not is_plural):
        root = ctx.find_root()
        found = list(_paths(ctx, root.command, root.command_path))
        same = [path for path in found if word in _words_of(path)]
        near = get_close_matches(word, {_words_of(path)[0] for path in found}, cutoff=0.75)
        like += [] if same or like else [path for path in found if _words_of(path)[0] in near]
        like = [*same, *like]
    unique = list(dict.fromkeys(like))[:_MOST_MEANT]
    return f"Did you mean {' or '.join(f'`{path}`' for path in unique)}?" if unique else None


def _words_of(path: str) -> list[str]:
    """Return the name of the command of this path, and its parts: `set-quota` is found by `quota` too."""
    name = path.rpartition(" ")[2]
    return [name, *name.split("-")]


def _paths(ctx: Any, group: Any, path: str) -> Iterator[str]:
    """Yield each command that is listed, as it is typed, a group before its commands."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if not command.hidden:
            yield f"{path} {name}"
        if hasattr(command, "list_commands"):
            yield from _paths(ctx, command, f"{path} {name}")


def _loaded(name: str, branch: Branch) -> Any:
    module, _, attribute = branch.room.partition(":")
    room = getattr(importlib.import_module(module), attribute)
    if isinstance(room, typer.Typer):
        room.info.cls = Nouns
        command: Any = typer.main.get_group(room)
        command.name = name
        return command
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(name, epilog=None if branch.example is None else f"Example: `{branch.example}`")(room)
    return typer.main.get_command(alone)
