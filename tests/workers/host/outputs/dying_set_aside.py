"""Outputs are set aside by a process that ends at once at its Nth change of a file's or folder's name or content."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.workers.host.content.dying_fetch import dying
from workers.host.outputs.setting_aside import set_aside

if __name__ == "__main__":
    dying(int(sys.argv[3]))
    set_aside(Path(sys.argv[1]), sys.argv[2])
