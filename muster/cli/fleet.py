"""``muster node`` and ``muster gpu``."""

from typing import Any

import typer

from muster.cli.output import AsJson, age, print_json, print_table
from muster.cli.profile import open_client

nodes = typer.Typer(help="GPU hosts.", no_args_is_help=True)
gpus = typer.Typer(help="GPUs.", no_args_is_help=True)


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


@gpus.command("list")
def list_gpus(*, as_json: AsJson = False) -> None:
    """Every GPU with its standing."""
    with open_client(as_operator=True) as client:
        found = client.gpus()
    if as_json:
        print_json(found)
        return
    rows = [(gpu["uuid"], gpu["slot_index"], gpu["model"], _standing(gpu)) for gpu in found]
    print_table(("GPU", "SLOT", "MODEL", "STANDING"), rows, empty="No GPUs are enrolled.")


def _standing(gpu: dict[str, Any]) -> str:
    """A person's override stands beside what the evidence says, and never hides it."""
    return f"{gpu['standing']}, set {gpu['override']}" if gpu["override"] else str(gpu["standing"])
