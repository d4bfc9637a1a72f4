"""The group ``muster agent`` with all its commands."""

from muster.cli.host import agent_pairwise
from muster.cli.host.agent import app
from muster.cli.host.agent_burn_in import burn_in
from muster.cli.host.agent_run import run

app.command("run", epilog="Example: `muster agent run --join-token-file gpu-07.token`")(run)
app.command("burn-in", epilog="Example: `muster agent burn-in --simulated h100 --gpus 2`")(burn_in)
app.add_typer(agent_pairwise.app, name="pairwise")
__all__ = ["app"]
