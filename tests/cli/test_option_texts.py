"""Each option of the command has the text of the field that it sets, or stands here with the reason why it has none."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from muster.cli.framework.app import app
from muster.cli.framework.field_help import option_help
from muster.documents.field_texts import FIELD_TEXTS, PARAMETER_TEXTS
from tools.openapi_document import described

COMMANDS: Final = Path(__file__).resolve().parents[2] / "muster" / "cli"
LOCAL: Final = {
    "agent": "runs on a GPU host and asks no API",
    "bootstrap": "writes to the database itself",
    "ckpt": "reads folders and stores of checkpoints",
    "completion": "writes a script for a shell",
    "content": "reads the database and the store itself",
    "data": "reads data sets",
    "dcgm": "reads what DCGM wrote",
    "doctor": "checks this machine",
    "hang": "reads a folder",
    "health": "judges records again, on this machine",
    "login": "signs in: its address, key and profile are this machine's",
    "logout": "forgets a profile of this machine",
    "mfu": "computes, and asks nothing",
    "profile": "changes profiles of this machine",
    "restored": "writes to the database itself",
    "run": "runs a program on this machine",
    "sim": "changes the simulated GPUs of this machine",
    "simulate": "plays a trace on this machine",
    "support-bundle": "collects files of this machine",
    "train": "runs a program on this machine",
    "up": "starts processes of this machine",
    "worker": "starts a process of this machine",
    "xid": "explains what is typed",
}
ALONE: Final = {
    "--csv": "how an answer is printed",
    "--every": "how often the command asks again",
    "--json": "how an answer is printed",
    "--watch": "that the command asks again",
    "--wide": "how an answer is printed",
    "--yaml": "how an answer is printed",
    "apply --dry-run": "compares, and sends nothing",
    "apply --file": "documents to read",
    "apply --prune": "which absent documents end something",
    "apply --yes": "asks for no answer",
    "audit verify --state-dir": "where this machine keeps its state",
    "bill export --form": "how the file is written",
    "bill export --out": "where the file is written",
    "bill export --provider": "a name in the file",
    "bill verify --key": "compares, and asks no server",
    "bill verify file": "a document to read",
    "cohort drift --nodes": "how an answer is printed",
    "event list --follow": "goes over to the stream of events",
    "gpu rollup --history": "chooses a stretch of time without bounds",
    "figures --csv": "how the answer is written",
    "gpu repair step": "chooses the operation",
    "job copy --follow": "prints the logs after the submission",
    "job copy --no-bundle": "uploads nothing",
    "job copy --set": "any field, by its own name",
    "job copy --wait": "waits after the submission",
    "job export --whole": "how a file is written",
    "job files --all": "which of the found files are printed",
    "job get --output": "where files are written",
    "job get --partial": "with which code the command ends",
    "job get --overwrite": "what becomes of files that are there",
    "job logs --build": "reads another log",
    "job logs --raw": "how a log is printed",
    "job plan --no-bundle": "uploads nothing",
    "job retry --follow": "prints the logs after the submission",
    "job retry --wait": "waits after the submission",
    "job submit --file": "a job file to read",
    "job submit --follow": "prints the logs after the submission",
    "job submit --no-bundle": "uploads nothing",
    "job submit --set": "any field, by its own name",
    "job submit --var": "variables of the file",
    "job submit --vars": "variables of the file",
    "job submit --wait": "waits after the submission",
    "job wait --timeout": "how long the command waits",
    "burnin run --timeout": "how long the command waits",
    "burnin run --wait": "waits for the verdict",
    "node drain --timeout": "how long the command waits",
    "node drain --wait": "waits for the hosts",
    "node export --out": "where records are written",
    "policy activate file": "a document to read",
    "policy check --offline": "asks no server",
    "policy check file": "a document to read",
    "rates diff --file": "a document to read",
    "rates set --file": "a document to read",
    "route change --alertmanager": "one kind of receiver",
    "route change --email": "one kind of receiver",
    "route change --new-secret": "states that the secret is shown",
    "route change --pagerduty-file": "where a secret is read",
    "route change --slack-file": "where a secret is read",
    "route change --webhook": "one kind of receiver",
    "route create --alertmanager": "one kind of receiver",
    "route create --email": "one kind of receiver",
    "route create --pagerduty-file": "where a secret is read",
    "route create --slack-file": "where a secret is read",
    "route create --webhook": "one kind of receiver",
    "secret rotate --file": "where the value is read",
    "secret rotate value": "refuses a value in the arguments",
    "secret set --file": "where the value is read",
    "secret set value": "refuses a value in the arguments",
}
"""Options that set and filter nothing of the API, by command or for all commands, each with what it does."""


class Given(NamedTuple):
    """An option or argument of a command."""

    command: str
    name: str
    help: str

    @property
    def is_explained(self) -> bool:
        return self.name in ALONE or f"{self.command} {self.name}" in ALONE or self.command.split()[0] in LOCAL


def every_option() -> Iterator[Given]:
    root = typer.main.get_command(app)
    yield from _below(root, ())


def _below(command: Any, words: tuple[str, ...]) -> Iterator[Given]:
    if not hasattr(command, "list_commands"):
        for each in command.params:
            is_option = each.param_type_name == "option"
            name = next(word for word in each.opts if word.startswith("--")) if is_option else each.name
            yield Given(" ".join(words), name, each.help or "")
        return
    for name in command.list_commands(None):
        yield from _below(command.get_command(None, name), (*words, name))


def heads() -> set[str]:
    """Return how the help of an option begins that has the text of a field or parameter."""
    texts = [*FIELD_TEXTS.values(), *PARAMETER_TEXTS.values()]
    return {option_help(text, "\0").partition("\0")[0].strip() for text in texts}


def has_text(words: str, known: set[str]) -> bool:
    return words in known or any(words.startswith(f"{each} ") for each in known)


def test_each_option_has_a_fields_text_or_a_reason_why_it_has_none() -> None:
    known = heads()
    found = [each for each in every_option() if not each.is_explained and not has_text(each.help, known)]
    assert found == []


def test_no_option_is_explained_that_has_a_fields_text_or_is_not_there() -> None:
    known, options = heads(), list(every_option())
    named = {f"{each.command} {each.name}" for each in options} | {each.name for each in options}
    assert sorted(ALONE.keys() - named) == []
    assert sorted(LOCAL.keys() - {each.command.split()[0] for each in options}) == []
    bound = {f"{each.command} {each.name}" for each in options if has_text(each.help, known)}
    assert sorted(ALONE.keys() & bound) == []


def test_no_command_writes_a_fields_text_again() -> None:
    known, again = heads(), []
    for path in sorted(COMMANDS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
                words = str(node.value.value)
                if has_text(words, known):
                    again.append(f"{path.name}: {words}")
    assert again == []


def test_openapi_has_the_text_of_which_an_option_has_the_first_sentence() -> None:
    document = described()
    parameters = {
        (operation["operationId"], each["name"]): each["description"]
        for methods in document["paths"].values()
        for operation in methods.values()
        for each in operation.get("parameters", ())
    }
    for key, text in PARAMETER_TEXTS.items():
        operation, _, name = key.rpartition(".")
        shown = {words for (of, named), words in parameters.items() if named == name and operation in {"", of}}
        assert text in shown, key
    fields = [field for schema in document["components"]["schemas"].values() for field in _fields(schema)]
    described_as = {(name, shape["description"]) for name, shape in fields}
    own = {key: text for key, text in FIELD_TEXTS.items() if "." in key}
    assert [key for key, text in own.items() if (key.rpartition(".")[2], text) not in described_as] == []


def _fields(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(schema.get("properties", {}).items())


def test_an_option_has_the_first_sentence_and_the_default_of_its_field() -> None:
    assert option_help("Ranks on each host; null: one a GPU.") == "Ranks on each host. Default: one a GPU."
    assert option_help("Ranks on each host; null: one a GPU.", "Default: 2.") == "Ranks on each host. Default: 2."
    assert (
        option_help("The reaction; null: the policy's.", "Or hold.") == "The reaction. Or hold. Default: the policy's."
    )
    assert option_help("The path of a script; null for a command.") == "The path of a script."
    assert option_help("Only this, such as job.cancel. More of it.") == "Only this, such as job.cancel."
