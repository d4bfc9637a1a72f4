"""The exit code with which the program itself ends, as far as an exit function can know it.

The interpreter keeps the code to itself. It reads it from the exception once all frames of the program have ended, so
``sys.exit``, ``exit`` and ``quit`` raise one that notes this. A program that raises ``SystemExit`` itself is not seen:
only its parent process learns that code.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any, NoReturn


class ProgramExit:
    """``code``: that of the ``sys.exit`` or the exception that ends the program; None as long as none does."""

    def __init__(self) -> None:
        self.code: object = None

    @property
    def has_failed(self) -> bool:
        return self.code is not None and self.code != 0

    def watch(self) -> None:
        """Replace ``sys.exit``, ``exit`` and ``quit`` from now on. An exit that the program catches is not noted."""
        noted = self

        class Exit(SystemExit):
            _code: Any = None

            @property
            def code(self) -> Any:
                if sys._getframe().f_back is None:  # noqa: SLF001  # the interpreter reads it: no program is left
                    noted.code = self._code
                return self._code

            @code.setter
            def code(self, code: Any) -> None:
                self._code = code

        def leave(status: Any = None, /) -> NoReturn:
            ending = Exit(status)
            ending.code = status
            raise ending

        sys.exit = leave
        for name in ("exit", "quit"):
            if hasattr(builtins, name):  # ``python -S`` has neither
                setattr(builtins, name, leave)
