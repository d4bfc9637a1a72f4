"""Versions of a document, as the commands of the policy and of the rate cards show them."""

from typing import Annotated, Final

import typer

from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.output import age
from muster.cli.framework.tables import Column

VersionNumber = Annotated[
    int | None, typer.Argument(min=1, help=parameter_help("version", "By default what is active."))
]
VERSION_COLUMNS: Final = (
    Column("VERSION", lambda item: item["version"]),
    Column("STATE", lambda item: "ACTIVE" if item["is_active"] else ""),
    Column("AGE", lambda item: age(item["created_at"])),
    Column("BY", lambda item: item["created_by"].split(" of ")[0], wide=lambda item: item["created_by"]),
    Column("REASON", lambda item: item["reason"], is_text=True),
)
