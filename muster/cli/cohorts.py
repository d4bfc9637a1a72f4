"""``muster cohort``."""

from typing import Annotated, Final

import typer

from muster.cli.nodes import standings_words
from muster.cli.output import Listing, Page, Table, reads
from muster.cli.profile import open_client
from muster.cli.tables import Column

app = typer.Typer(help="Cohorts: GPUs that may be mixed in one gang.", no_args_is_help=True)
COLUMNS: Final = (
    Column("COHORT", lambda item: item["key"], is_text=True, wide=lambda item: item["key"]),
    Column("GPUS", lambda item: item["num_gpus"]),
    Column("NODES", lambda item: item["num_nodes"]),
    Column("STANDINGS", lambda item: standings_words(item["standings"]), is_text=True),
)
MEASURES: Final = (
    Column("MEASURE", lambda item: item["measure"]),
    Column("GPUS", lambda item: item["num_gpus"]),
    Column("LEAST", lambda item: f"{item['min']:.4g}"),
    Column("MEDIAN", lambda item: f"{item['median']:.4g}"),
    Column("GREATEST", lambda item: f"{item['max']:.4g}"),
)


@reads(app, "list", example="muster cohort list")
def list_cohorts() -> Listing:
    """Each with its GPUs, counted by standing."""
    with open_client(as_operator=True) as client:
        return Listing(client.cohorts(), COLUMNS, "There are no cohorts, since there are no GPUs.")


@reads(app, "show", example="muster cohort show 'NVIDIA H100 80GB HBM3/…'")
def show(cohort: Annotated[str, typer.Argument(help="Its key, or as much of it as begins no other.")]) -> Page:
    """What is equal of its GPUs, where they stand, and what their burn-ins measured."""
    with open_client(as_operator=True) as client:
        keys = [str(each["key"]) for each in client.cohorts()]
        begun = [key for key in keys if key.startswith(cohort)]
        found = client.cohort(begun[0] if cohort not in keys and len(begun) == 1 else cohort)
    said: list[str | Table] = [found["key"], f"  {found['num_gpus']} GPUs on {found['num_nodes']} nodes"]
    said.append(f"  {standings_words(found['standings'])}")
    said.append("equal of all of them:")
    said += [f"  {name}: {'not known' if value is None else value}" for name, value in found["attributes"].items()]
    if found["measures"]:
        said.append(f"newest burn-ins; {found['tolerance']:.0%} from the median is within tolerance:")
        said.append(Table(MEASURES, found["measures"]))
    return Page(found, said)
