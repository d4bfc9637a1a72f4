"""The process off which all live ranks of the suite ``watch`` fork: it imports torch once."""

import atexit
import functools

from tests.train.train_case import Zygote


@functools.cache
def zygote() -> Zygote:
    """Return it, started at the first call; it ends with this process."""
    found = Zygote()
    atexit.register(found.close)
    return found
