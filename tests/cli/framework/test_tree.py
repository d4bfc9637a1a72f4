"""The whole tree of commands: each has help with an example, each list and show the same options, and every operation
of the API that a person may ask has a command.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException

from api.app import create_inner_app
from api.dependencies import AppDependencies
from api.permissions import declared_routes
from control.core.unit_of_work import UnitOfWorkFactory
from muster.cli.framework.app import app
from muster.cli.framework.branches import BRANCHES
from muster.db.engine import make_engine
from tests.cli.operations import COMMANDS, PREFIXES_WITHOUT_A_COMMAND, WITHOUT_A_COMMAND

SHOWN = {"--json", "--yaml", "--wide", "--watch"}
READS = {"list", "show", "checkpoints", "ranks", "steps", "events", "jobs", "moves", "burn-ins", "evidence", "latest"}
READS |= {"history", "system"}


def leaves(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    group = group or typer.main.get_command(app)
    context: Any = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from leaves(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


TREE = dict(leaves())


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("name", sorted(TREE))
def test_each_command_has_help_and_an_example_that_is_typed_with_it(name: str) -> None:
    command = TREE[name]
    assert command.help, "what it does"
    assert f"`muster {name}" in (command.epilog or "") or name == "completion", command.epilog
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert parameter.help, f"{name} {parameter.opts}: what it is"


@pytest.mark.parametrize("name", sorted(name for name in TREE if name.rsplit(" ", maxsplit=1)[-1] in READS))
def test_each_list_and_show_is_reported_in_the_same_ways(name: str) -> None:
    assert options_of(TREE[name]) >= SHOWN


@pytest.mark.parametrize("name", sorted(COMMANDS.values()))
def test_each_change_may_be_tried_first(name: str) -> None:
    changing = {command for operation, command in COMMANDS.items() if not operation.startswith("GET")}
    if name in changing and name not in {
        "policy check",
        "job plan",
        "login",
        "logout",
    }:  # these store nothing, or a key alone
        assert options_of(TREE[name]) >= {"--dry-run", "--json"}


def test_every_operation_of_the_api_has_a_command_or_a_reason() -> None:
    units = UnitOfWorkFactory(make_engine("postgresql://nobody@127.0.0.1:1/none"))
    routes = declared_routes(create_inner_app(AppDependencies(units=units, secret_key=b"x" * 32)))
    operations = {f"{method} {path}" for method, path, _ in routes if method not in {"HEAD", "OPTIONS"}}
    open_to_people = {
        each
        for each in operations - WITHOUT_A_COMMAND.keys()
        if not each.split(" ", 1)[1].startswith(tuple(PREFIXES_WITHOUT_A_COMMAND))
    }
    assert open_to_people - COMMANDS.keys() == set(), "operations without a command"
    assert COMMANDS.keys() - operations == set(), "commands of operations that are no more"
    assert WITHOUT_A_COMMAND.keys() - operations == set(), "reasons for operations that are no more"
    assert {command for command in COMMANDS.values() if command not in TREE} == set()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("quota", "Did you mean `muster tenant quota`"),
        ("submit", "Did you mean `muster job submit`?"),
        ("sumbit", "Did you mean `muster job submit`?"),
        ("logs", "Did you mean `muster job logs` or `muster login`"),
        ("jobs", "Did you mean `muster job`?"),
        ("job sumbit", "Did you mean `muster job submit`?"),
        ("job quota", "Did you mean `muster tenant quota`"),
        ("job zzz", "There are submit, copy"),
        ("zzz", "`muster --help` lists them."),
    ],
)
def test_an_unknown_command_names_similar_ones_of_any_group(words: str, meant: str) -> None:
    with pytest.raises(TyperException) as refused:
        app(words.split(), standalone_mode=False, prog_name="muster")
    assert meant in str(refused.value)


def test_the_roots_words_are_those_of_its_branches() -> None:
    root: Any = typer.main.get_command(app)
    context: Any = typer.Context(root)
    for name, branch in BRANCHES.items():
        said = root.get_command(context, name).help.strip().splitlines()[0]
        assert said.startswith(branch.words.rstrip(".")) or branch.words in said or name in {"up", "completion"}, name
