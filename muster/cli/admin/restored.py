"""``muster restored`` is run once after a restore of the database from a backup, with the database's address."""

from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import AsJson, AsYaml, Format, Page, show
from muster.settings import load_settings

if TYPE_CHECKING:
    from control.system import restores


def restored(
    reason: Annotated[str, typer.Option(help="Which backup, and why; it is recorded in the audit.")],
    *,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
) -> int:
    """Say that the database came back from a backup, before the control plane is started again.

    Every attempt from now on is above all attempts that the backup does not know, so that hosts and checkpoints can
    distinguish them. Starts that no host had claimed are given up; their jobs wait again at no cost. It needs
    MUSTER_DATABASE_URL, like `muster bootstrap`, and refuses while an API runs.
    """
    from control.core.unit_of_work import UnitOfWorkFactory, retrying
    from control.system import restores
    from muster.db.engine import make_engine
    from muster.domain.principals import Principal, Role

    if not reason.strip():
        raise CommandError("--reason is empty", "Say which backup it was, and why.", Exit.USAGE)
    engine = make_engine(str(load_settings().require("database_url").database_url), application_name="muster-restored")
    by = Principal(name="operator:restore", role=Role.OPERATOR)

    def once() -> restores.Restored:
        with UnitOfWorkFactory(engine).begin(by, restores.RESTORED) as unit:
            return restores.restored(unit, reason=reason)

    try:
        return show(_page(retrying(once)), Format(as_json, as_yaml))
    finally:
        engine.dispose()


def _page(found: "restores.Restored") -> Page:
    document = {"epoch_before": found.epoch_before, "epoch": found.epoch, "given_up": list(found.given_up)}
    said = [
        f"epoch {found.epoch_before} → {found.epoch}: every later attempt is above all earlier ones",
        f"{len(found.given_up)} starts that no host had claimed are given up; their jobs wait again",
        "",
        "Not in the backup, and so undone: keys, persons and join tokens made or REVOKED since it was taken",
        "  (`muster key list`), cordons, policies (`muster policy list`), jobs submitted and cancelled.",
        "Now start API and control worker. Give the hosts a minute to stop what the backup does not know, whose GPUs",
        "  it shows as free; then start the scheduler. `muster doctor` and `muster audit verify` say how it is.",
    ]
    return Page(document, said)
