"""Content that a tenant stored: folders, and the objects that they consist of."""

from enum import StrEnum
from typing import Final

OUTPUTS_FACT: Final = "outputs"
"""Member of a host's proof of cleanness: ``HostOutputsState.WAITING`` or ``NOTHING``."""
OUTPUTS_GIVEN_UP: Final = "nothing is uploaded"
"""With these words a host's note about outputs begins, if it gives them up."""


class FolderKind(StrEnum):
    BUNDLE = "bundle"
    """A work folder that a job starts in."""
    OUTPUTS = "outputs"
    ENVIRONMENT = "environment"


class FolderState(StrEnum):
    UPLOADING = "uploading"
    """The store lacks some of its objects."""
    COMPLETE = "complete"


class HostOutputsState(StrEnum):
    """What is there of one host's outputs at the end of an attempt."""

    RUNNING = "running"
    """The attempt has not ended there."""
    UNKNOWN = "unknown"
    """The attempt has ended, and the host has not reported what it left."""
    WAITING = "waiting"
    """The host has set them aside, and has not begun to upload them."""
    UPLOADING = "uploading"
    COMPLETE = "complete"
    NOTHING = "nothing"
    """The attempt left nothing there."""
    FAILED = "failed"
    """The host gave them up."""
    LOST = "lost"
    """Contact to the host was lost, or its time is over."""


class ObjectKind(StrEnum):
    CHUNK = "chunk"
    MANIFEST = "manifest"


class ObjectState(StrEnum):
    WANTED = "wanted"
    """A folder needs it, and no client has confirmed its upload."""
    PRESENT = "present"
    DOOMED = "doomed"
    """It is being deleted from the store. No upload of it begins before the last deletion has had its effect."""
