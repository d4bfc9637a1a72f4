"""A fetch that ends at once at its Nth change of a file's or folder's name or content; exit code 77."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.workers.host.content.bundle_case import BundleSource, HostDisk

DIES = 77


def dying(after: int) -> None:
    left = [after]

    def counted(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:
                os._exit(DIES)
            return real(*arguments, **named)

        return call

    for name in ("pwrite", "link", "rename", "replace", "mkdir", "symlink", "chmod", "ftruncate", "unlink", "write"):
        setattr(os, name, counted(getattr(os, name)))


def main(store: Path, state_dir: Path, digest: str, after: int) -> None:
    content = {path.name: path.read_bytes() for path in store.iterdir()}
    source = BundleSource(content, content.pop("manifest"))
    dying(after)
    HostDisk(state_dir).fetch(digest, source)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
