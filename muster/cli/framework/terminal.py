"""Terminals: whether a stream is one that obeys escape sequences, such as colours."""

import os
import sys
from typing import TextIO


def takes_escapes(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that obeys escape sequences."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    return sys.platform != "win32" or _has_enabled_escapes(stream)


def _has_enabled_escapes(stream: TextIO) -> bool:
    """Return whether the console of Windows obeys them; it does so from Windows 10 on, once a program asks for it."""
    if sys.platform != "win32":
        return True
    import ctypes
    import msvcrt

    kernel, mode = ctypes.windll.kernel32, ctypes.c_ulong()
    handle = msvcrt.get_osfhandle(stream.fileno())
    enable_virtual_terminal_processing = 0x0004
    if not kernel.GetConsoleMode(handle, ctypes.byref(mode)):
        return False
    return bool(kernel.SetConsoleMode(handle, mode.value | enable_virtual_terminal_processing))
