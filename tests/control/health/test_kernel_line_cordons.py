"""A line of a node's kernel log holds the node: from the agent's own reader to the cordon."""

from pathlib import Path

from agents.kernel_log.kernel_log import logged_until_now
from agents.probes.interface import HostInventory
from agents.reports import event_report
from muster.domain.states import Standing
from tests.control.health.conftest import Court
from tests.control.health.test_rule_cordons import hold, standings


def test_a_kernel_line_of_a_fatal_nvswitch_error_holds_its_node(court: Court, tmp_path: Path) -> None:
    kernel_log = tmp_path / "kmsg"
    for fatal, held in (("Non-fatal", 0), ("Fatal", 1)):
        kernel_log.write_text(f"3,7,5000000000,-;nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, {fatal}, Link 30\n")
        (event,) = logged_until_now(HostInventory(), "boot-1", path=kernel_log) or ()
        told = event_report(event, "boot-1", is_open=False)
        columns = {"kind": told.kind, "code": told.code, "source": told.source, "text": told.text}
        court.signal(fatal, None, **columns, values=dict(told.values))
        court.judge()
        assert hold(court) == held
    assert standings(court) == {Standing.HEALTHY}
