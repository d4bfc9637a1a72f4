"""``muster policy``."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from muster.cli.exits import CommandError, Exit
from muster.cli.output import Done, DryRun, Listing, Page, Table, age, changes, reads, yaml_of
from muster.cli.pending import once
from muster.cli.profile import open_client
from muster.cli.tables import Column, Document

app = typer.Typer(help="The policy: every number and rule, and its versions.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The policy as YAML or JSON.")]
COLUMNS: Final = (
    Column("VERSION", lambda item: item["version"]),
    Column("STATE", lambda item: "ACTIVE" if item["is_active"] else ""),
    Column("AGE", lambda item: age(item["created_at"])),
    Column("BY", lambda item: item["created_by"].split(" of ")[0], wide=lambda item: item["created_by"]),
    Column("REASON", lambda item: item["reason"], is_text=True),
)
DIFFERENCES: Final = (
    Column("WHERE", lambda item: item["path"]),
    Column("FROM", lambda item: json.dumps(item["from"], ensure_ascii=False), is_text=True),
    Column("TO", lambda item: json.dumps(item["to"], ensure_ascii=False), is_text=True),
)


@reads(app, "list", example="muster policy list")
def list_versions() -> Listing:
    """Every version, the newest first."""
    with open_client(as_operator=True) as client:
        found = list(client.policies())
    return Listing(found, COLUMNS, "No policy was stored: the built-in one is in force. `muster policy show` shows it.")


@reads(app, "show", example="muster policy show > policy.yaml")
def show(
    version: Annotated[int | None, typer.Argument(min=1, help="By default what is active.")] = None,
) -> Page:
    """The policy with every default filled in, as YAML that `muster policy check` takes."""
    with open_client(as_operator=True) as client:
        found = client.policy() if version is None else client.policy_version(version)
    if found["version"] is None:
        head = "# the built-in policy, which is in force until one is stored"
    else:
        state = "active" if found["is_active"] else "not active"
        made = f"by {found['created_by']} {age(found['created_at'])} ago: {found['reason']}"
        head = f"# version {found['version']}, {state}, {made}"
    warning = [] if found["is_usable"] else ["# this release does not take it: the built-in policy is in force"]
    return Page(found, [head, *warning, *yaml_of(found["document"]).splitlines()], is_verbatim=True)


@changes(app, "check", example="muster policy check policy.yaml")
def check(file: File) -> Page:
    """Whether a file is a policy, field by field, and what it would change. Exit code 6: it is none."""
    with open_client(as_operator=True) as client:
        found = client.check_policy(_document(file))
    if not found["is_valid"]:
        said: list[str | Table] = [f"{file} is no policy:", *(_fault(each) for each in found["errors"])]
        return Page(found, said, Exit.INVALID)
    obstacles, differences = found["obstacles"], found["differences"]
    said = [f"{file} is a policy; beside what is active {_changes(differences)}"]
    if differences:
        said.append(Table(DIFFERENCES, differences))
    if obstacles:
        said += ["it cannot become active as things are:", *(_fault(each) for each in obstacles)]
    return Page(found, said, Exit.INVALID if obstacles else Exit.OK)


@changes(app, "activate", example="muster policy activate policy.yaml --reason 'longer notice for spot'")
def activate(
    file: File,
    reason: Annotated[str, typer.Option(help="Why; it stands with the version and in the audit.")],
    expected: Annotated[int | None, typer.Option(min=1, help="Only if this version is active now.")] = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Make a file the active policy. What it leaves out has its default, not what is active now."""
    body = {"document": _document(file), "reason": reason}
    with open_client(as_operator=True) as client:

        def send(body: dict[str, Any], key: str | None) -> Any:
            wanted = body["document"], body["reason"]
            return client.activate_policy(*wanted, version=expected, idempotency_key=key, dry_run=dry_run)

        made = send(body, None) if dry_run else once(["policy", body, expected], body, send, what="the version")
    return Done(made, f"version {made['version']} is active; {_changes(made['differences'])}")


def _document(path: Path) -> dict[str, Any]:
    """Raises ``CommandError`` for what is no mapping in YAML; the API says what of it is no policy."""
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(
            f"{path}: cannot be read as YAML ({error})", "Mend it; JSON is YAML too.", Exit.INVALID
        ) from error
    if not isinstance(document, dict):
        raise CommandError(f"{path}: holds no mapping", "See `muster policy show`.", Exit.INVALID)
    return document


def _fault(fault: Document) -> str:
    return f"  {fault['pointer'].lstrip('/').replace('/', '.') or 'the whole'}: {fault['detail']}"


def _changes(differences: Any) -> str:
    count = len(differences)
    return "nothing changes" if not count else "one value changes" if count == 1 else f"{count} values change"
