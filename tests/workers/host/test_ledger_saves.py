"""The launcher uses a ledger only once it is on disk: what a crash would take back has no effect before."""

import errno
from pathlib import Path
from typing import Any

import pytest

from muster.domain.ids import AttemptId, Fence
from muster.domain.lifecycle.host import HeartbeatAnswered, HostLedger, Phase
from workers.host.launcher import HostConfig, Launcher
from workers.host.ledger_file import LedgerFile

ATTEMPT = AttemptId("att_1")
ANSWER = HeartbeatAnswered(sent_ms=0, lease_ms=1000, unclaimed=((ATTEMPT, Fence(1 << 32)),), stops={}, forget=(), go=())


class FullDisk(LedgerFile):
    is_full = True

    def save(self, ledger: HostLedger) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().save(ledger)


class Client:
    """What is claimed; no claim is answered."""

    def __init__(self) -> None:
        self.claimed: list[AttemptId] = []

    def claim(self, attempt_id: AttemptId, _request: Any) -> Any:
        self.claimed.append(attempt_id)
        return type("Refused", (), {"granted": False, "order": None, "refusal": "test"})


def test_what_cannot_be_saved_has_no_effect_and_is_done_again(tmp_path: Path) -> None:
    client, file = Client(), FullDisk(tmp_path)
    config = HostConfig(node_id="node_1", state_dir=tmp_path, python="python", boot_id="boot-1")
    launcher = Launcher(config, client, file, None)  # type: ignore[arg-type]  # neither beats nor logs
    with pytest.raises(OSError, match="No space left"):
        launcher._apply(ANSWER)
    assert launcher._ledger.records == {}
    assert client.claimed == []
    file.is_full = False
    launcher._apply(ANSWER)
    assert client.claimed == [ATTEMPT]
    assert launcher._ledger.records[ATTEMPT].phase is Phase.CLEAN
    assert file.load("boot-1") == launcher._ledger
    file.close()
