"""A host's process that gets an environment, with a control plane and a store that are files; it may die on the way."""

import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.workers.host.content.dying_fetch import dying
from tests.workers.host.content.environment_case import FilePlane
from workers.host.content.environment import EnvironmentMaking
from workers.host.content.faults import FetchError
from workers.host.content.fetch_order import FetchOrder, Progress, report


def main(order_file: Path, plane: Path, dies_after: int) -> None:
    order = msgspec.json.decode(order_file.read_bytes(), type=FetchOrder)
    if dies_after:
        dying(dies_after)
    try:
        made = EnvironmentMaking(order, FilePlane(plane), Progress()).made()
    except FetchError as fault:
        report({"why": str(fault), "is_of_host": fault.IS_OF_HOST})
    else:
        report({"venv": str(made)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
