"""What all forks that stand for a fresh interpreter have in common."""

import sys
from collections.abc import Callable


def code_of(program: Callable[[], object]) -> int:
    """Return the exit code with which a fresh interpreter would end, after its report of an error."""
    try:
        program()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # as the interpreter would
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
