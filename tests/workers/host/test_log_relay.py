"""A folder without an order that can be read has nothing to send, and holds nothing up."""

from pathlib import Path
from typing import Any

import pytest

from workers.host.attempt_folder import FORGOTTEN
from workers.host.log_relay import LogRelay

NO_CLIENT: Any = None


@pytest.mark.parametrize("order", [None, b"", b"{torn"])
def test_logs_without_a_readable_order_are_left_and_the_folder_is_still_forgotten(
    tmp_path: Path, order: bytes | None
) -> None:
    folder = tmp_path / "attempts" / "att_1"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "rank0.log").write_bytes(b"a line\n")
    if order is not None:
        (folder / "order.json").write_bytes(order)
    relay = LogRelay(tmp_path, NO_CLIENT)
    assert relay.drain_all() == 0
    assert folder.exists()
    (folder / FORGOTTEN).touch()
    assert relay.drain_all() == 0
    assert not folder.exists()
