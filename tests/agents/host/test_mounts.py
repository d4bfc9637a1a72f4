"""Which file systems take nothing, by the kernel's table of mounts."""

from pathlib import Path

import pytest

from agents.host.mounts import read_only
from tests.agents.host.trees import HostTree

TABLE = r"""22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
23 22 259:3 / /var/lib/muster rw,relatime - ext4 /dev/nvme1n1 ro,errors=remount-ro
24 22 0:50 / /mnt/check\040points ro,relatime shared:2 - nfs4 files:/ckpt rw,vers=4.2
25 22 0:51 / /mnt/over rw - ext4 /dev/sda1 ro
26 22 0:52 / /mnt/over rw - ext4 /dev/sdb1 rw
27 22 broken
"""


@pytest.mark.parametrize(
    ("folder", "num"),
    [
        ("/var/lib/muster/agent", 1),
        ("/var/lib/musters", 0),
        ("/mnt/check points/run", 0),
        ("/mnt/over", 0),
        ("/elsewhere", 0),
    ],
)
def test_the_file_system_itself_decides_and_not_how_a_process_sees_it(tmp_path: Path, folder: str, num: int) -> None:
    HostTree(tmp_path).write("proc/self/mountinfo", TABLE)
    assert read_only([Path(folder)], tmp_path / "proc") == {"read_only_disks": num}


@pytest.mark.parametrize("table", ["", "\x00\xff", "a b c - d e f\n"])
def test_a_table_that_cannot_be_read_states_nothing(tmp_path: Path, table: str) -> None:
    HostTree(tmp_path).write("proc/self/mountinfo", table)
    assert read_only([Path("/")], tmp_path / "proc") == {}
