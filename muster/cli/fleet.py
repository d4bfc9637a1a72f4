"""``muster node``."""

import typer

from muster.cli.output import AsJson, age, print_json, print_table
from muster.cli.profile import open_client

nodes = typer.Typer(help="GPU hosts.", no_args_is_help=True)


@nodes.command("list")
def list_nodes(*, as_json: AsJson = False) -> None:
    """Every host with its contact."""
    with open_client(as_operator=True) as client:
        found = client.nodes()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            node["id"],
            node["name"],
            node["contact"],
            node["num_gpus"],
            "simulated" if node["is_simulated"] else "real",
            age(node["last_heartbeat_at"]),
        )
        for node in found
    ]
    print_table(("NODE", "NAME", "CONTACT", "GPUS", "KIND", "HEARD"), rows, empty="No hosts are enrolled.")
