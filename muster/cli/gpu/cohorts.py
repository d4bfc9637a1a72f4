"""``muster cohort``."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.output import Listing, Page, Table, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document
from muster.cli.node.nodes import standings_words

app = typer.Typer(help="Cohorts: GPUs that may be mixed in one gang.", no_args_is_help=True)
MEASURES: Final = (
    Column("MEASURE", lambda item: item["measure"]),
    Column("GPUS", lambda item: item["num_gpus"]),
    Column("LEAST", lambda item: f"{item['min']:.4g}"),
    Column("MEDIAN", lambda item: f"{item['median']:.4g}"),
    Column("GREATEST", lambda item: f"{item['max']:.4g}"),
)


@reads(app, "list", example="muster cohort list")
def list_cohorts() -> Listing:
    """List cohorts, each with its distinguishing attributes, and its GPUs counted by standing."""
    with open_client(as_operator=True) as client:
        found = client.cohorts()
    told = _distinguishing_keys(found)
    columns = (
        Column("COHORT", lambda item: ", ".join(str(item["attributes"][name]) for name in told), is_text=True),
        Column("GPUS", lambda item: item["num_gpus"]),
        Column("NODES", lambda item: item["num_nodes"]),
        Column("SPARES", lambda item: "-" if item.get("num_spare_nodes") is None else item["num_spare_nodes"]),
        Column("STANDINGS", standings_words, is_text=True),
        Column("KEY", lambda item: item["key"], only_wide=True),
    )
    return Listing(found, columns, "There are no cohorts, since there are no GPUs.")


def _distinguishing_keys(cohorts: Sequence[Document]) -> list[str]:
    """Return the attributes in which the cohorts differ; for a single one, the model.

    The model comes first, and other attributes follow only if the model does not distinguish all.
    """
    names = list(cohorts[0]["attributes"]) if cohorts else []
    telling = [name for name in names if len({each["attributes"].get(name) for each in cohorts}) > 1]
    if "model" in names:
        apart_by_model = len({each["attributes"]["model"] for each in cohorts}) == len(cohorts)
        others = [] if apart_by_model else [name for name in telling if name != "model"]
        return ["model", *others]
    return telling or names


@reads(app, "show", example="muster cohort show H100")
def show(cohort: Annotated[str, typer.Argument(help=parameter_help("key"))]) -> Page:
    """Show what all GPUs of a cohort have in common, their standings, and the results of their burn-ins."""
    with open_client(as_operator=True) as client:
        found = client.cohort(_named([str(each["key"]) for each in client.cohorts()], cohort))
    said: list[str | Table] = [
        found["key"],
        f"  {_counted(found['num_gpus'], 'GPU')} on {_counted(found['num_nodes'], 'node')}",
    ]
    said.append(f"  {standings_words(found)}")
    if found["dtypes"] is not None:
        said.append(f"  tensor cores multiply {', '.join(found['dtypes'])}")
    said.append("equal of all of them:")
    said += [f"  {name}: {'not known' if value is None else value}" for name, value in found["attributes"].items()]
    if found["measures"]:
        said.append(f"newest burn-ins; {found['tolerance']:.0%} from the median is within tolerance:")
        said.append(Table(MEASURES, found["measures"]))
    return Page(found, said)


@reads(app, "drift", example="muster cohort drift --nodes")
def drift(
    *, nodes: Annotated[bool, typer.Option("--nodes", help="Name the nodes that differ, the first hundred.")] = False
) -> Page:
    """List the differences from most GPUs of a model; the difference that keeps the most GPUs out of a gang comes
    first.
    """
    with open_client(as_operator=True) as client:
        found = client.cohort_drift()
    lines = [line for each in found for line in _drift_lines(each, with_nodes=nodes)]
    return Page(found, lines or ["All GPUs of a model are alike in what their agents report."])


def _drift_lines(drift: Document, *, with_nodes: bool) -> Iterator[str]:
    # A node whose GPUs differ among each other is counted with each of their values.
    differing = min(drift["num_nodes"], sum(other["num_nodes"] for other in drift["others"]))
    cost = f"keeps {_counted(drift['num_kept_out'], 'GPU')} out of a gang with the rest"
    # A server of the release before does not distinguish tiers.
    if drift["num_kept_out"] and drift.get("mixed_in"):
        cost += f", except for the tiers {', '.join(drift['mixed_in'])}"
    yield f"{drift['model']}: {differing} of {_counted(drift['num_nodes'], 'node')} on another {drift['attribute']}"
    yield f"  most: {drift['majority']}; {cost if drift['num_kept_out'] else 'the policy lets them be mixed'}"
    for other in drift["others"]:
        gpus = _counted(other["num_gpus"], "GPU")
        yield f"  {other['value']}: {gpus} on {_counted(other['num_nodes'], 'node')}"
        if with_nodes:
            yield f"    {', '.join(node['name'] for node in other['nodes'])}"


def _named(keys: list[str], text: str) -> str:
    """Return the one cohort that ``text`` names. Raises ``CommandError`` if it names none or several."""
    found = [text] if text in keys else [key for key in keys if text.lower() in key.lower()]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CommandError(f"there is no cohort {text!r}", "`muster cohort list --wide` names them.", Exit.NOT_FOUND)
    raise CommandError(f"{text!r} could be {len(found)} cohorts", f"Such as {found[0]} or {found[1]}.", Exit.USAGE)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
