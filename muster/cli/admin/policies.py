"""``muster policy``."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from muster.cli.admin.versions import VERSION_COLUMNS, VersionNumber
from muster.cli.framework.document_files import fault_lines, validated_or_faults
from muster.cli.framework.exits import Exit
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import WithinOptions
from muster.cli.framework.options import DespiteBudget
from muster.cli.framework.output import Done, DryRun, Listing, Page, Table, age, changes, reads, yaml_of
from muster.cli.framework.pending import once
from muster.cli.framework.policy_files import policy_document
from muster.cli.framework.profile import NothingNamedError, open_client
from muster.cli.framework.tables import Column
from muster.domain.policy.differences import differences
from muster.domain.policy.document import DEFAULT_POLICY, Policy

app = typer.Typer(help="The policy: every number and rule, and its versions.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The policy as YAML or JSON.")]
POLICY_DIFFERENCES: Final = (
    Column("WHERE", lambda item: item["path"]),
    Column("FROM", lambda item: json.dumps(item["from"], ensure_ascii=False), is_text=True),
    Column("TO", lambda item: json.dumps(item["to"], ensure_ascii=False), is_text=True),
)


@reads(app, "list", example="muster policy list")
def list_versions(within: WithinOptions) -> Listing:
    """List every version, the newest first."""
    with open_client(as_operator=True) as client:
        found = list(client.policies(**within.query()))
    return Listing(
        found, VERSION_COLUMNS, "No policy was stored: the built-in one is in force. `muster policy show` shows it."
    )


@reads(app, "show", example="muster policy show > policy.yaml")
def show(version: VersionNumber = None) -> Page:
    """Show the policy with every default filled in, as YAML that `muster policy check` accepts."""
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
def check(
    file: File,
    *,
    offline: Annotated[
        bool, typer.Option("--offline", help="Without a server: by this release, against the built-in policy.")
    ] = False,
) -> Page:
    """Check a file field by field, and show what it would change. Exit code 6: it is no policy.

    If no control plane is named, it is checked as with --offline.
    """
    if offline:
        return _checked_here(file)
    try:
        asked = open_client(as_operator=True)
    except NothingNamedError:
        return _checked_here(file)
    with asked as client:
        found = client.check_policy(policy_document(file))
    if not found["is_valid"]:
        said: list[str | Table] = [f"{file} is no policy:", *fault_lines(found["errors"])]
        return Page(found, said, Exit.INVALID, is_one_line=True)
    obstacles, differences = found["obstacles"], found["differences"]
    said = [f"{file} is a policy; compared with the active policy, {_changes(differences)}"]
    if differences:
        said.append(Table(POLICY_DIFFERENCES, differences))
    if obstacles:
        said += ["it cannot become active as things are:", *fault_lines(obstacles)]
    return Page(found, said, Exit.INVALID if obstacles else Exit.OK, is_one_line=True)


@changes(app, "activate", example="muster policy activate policy.yaml --reason 'longer notice for spot'")
def activate(
    file: File,
    reason: Annotated[str, typer.Option(help=field_help("reason"))],
    expected: Annotated[int | None, typer.Option(min=1, help=parameter_help("activate_policy.if-match"))] = None,
    despite_budget: DespiteBudget = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Make a file the active policy. A field that it leaves out gets its default, not its active value."""
    body = {"document": policy_document(file), "reason": reason, "despite": despite_budget}
    with open_client(as_operator=True) as client:

        def send(body: dict[str, Any], key: str | None) -> Any:
            wanted = body["document"], body["reason"]
            return client.activate_policy(
                *wanted, version=expected, despite_budget=body["despite"], idempotency_key=key, dry_run=dry_run
            )

        made = send(body, None) if dry_run else once(["policy", body, expected], body, send, what="the version")
    return Done(made, f"version {made['version']} is active; {_changes(made['differences'])}")


def _checked_here(file: Path) -> Page:
    policy, faults = validated_or_faults(Policy, policy_document(file))
    if policy is None:
        said: list[str | Table] = [f"{file} is no policy:", *fault_lines(faults)]
        return Page({"is_valid": False, "errors": faults}, said, Exit.INVALID, is_one_line=True)
    changes_: list[dict[str, Any]] = [
        {"path": each.path, "from": each.before, "to": each.after} for each in differences(DEFAULT_POLICY, policy)
    ]
    said = [f"{file} is a policy; compared with the built-in policy, {_changes(changes_)}"]
    if changes_:
        said.append(Table(POLICY_DIFFERENCES, changes_))
    return Page({"is_valid": True, "errors": [], "differences": changes_}, said, is_one_line=True)


def _changes(differences: Any) -> str:
    count = len(differences)
    return "nothing changes" if not count else "one value changes" if count == 1 else f"{count} values change"
