"""Releases of a client and a server that fit each other.

A change of the API expands first and contracts a release later, so a client may be one minor release older or newer
than the server. Of another major release nothing is known. A version that cannot be read is no reason to refuse: own
programs send none.
"""

import re
from typing import Final

FARTHEST_MINOR: Final = 1
CLIENT_HEADER: Final = "Muster-Client-Version"
"""Header by which a client names its version; a host's own programs have versions of their protocol instead."""
SERVER_HEADER: Final = "Muster-Version"
_VERSION: Final = re.compile(r"(?P<major>\d{1,9})\.(?P<minor>\d{1,9})(?:[.+a-z-][0-9A-Za-z.+-]{0,64})?", re.ASCII)


def release_of(version: str | None) -> tuple[int, int] | None:
    """Return major and minor release; None where the text is no version."""
    found = _VERSION.fullmatch(version or "")
    return None if found is None else (int(found["major"]), int(found["minor"]))


def fits(client: str | None, server: str | None) -> bool:
    """Return whether a client of one version may talk to a server of the other."""
    ours, theirs = release_of(client), release_of(server)
    if ours is None or theirs is None:
        return True
    return ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= FARTHEST_MINOR


def misfit_words(client: str, server: str) -> str:
    """Return the fault of two versions that do not fit."""
    ours, theirs = release_of(client), release_of(server)
    age = "older" if (ours or (0, 0)) < (theirs or (0, 0)) else "newer"
    return f"muster-client {client} is too far {age} than the control plane, which is {server}"


def misfit_advice(address: str) -> str:
    """Return what to do: install the client that the control plane at ``address`` serves."""
    return f"Install its own client: `pip install --upgrade -r {address}/install/client.txt`; see {address}/install."
