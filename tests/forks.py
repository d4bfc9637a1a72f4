"""What a fork that stands for a fresh interpreter has in common, whoever asks for it."""

import sys
from collections.abc import Callable


def code_of(program: Callable[[], object]) -> int:
    """The exit code with which a fresh interpreter would end, after what it would have said of an error."""
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
