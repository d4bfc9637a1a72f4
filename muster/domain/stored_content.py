"""Content that a tenant stored: folders, and the objects that they consist of."""

from enum import StrEnum


class FolderKind(StrEnum):
    BUNDLE = "bundle"
    """A work folder that a job starts in."""
    OUTPUTS = "outputs"
    ENVIRONMENT = "environment"


class FolderState(StrEnum):
    UPLOADING = "uploading"
    """The store lacks some of its objects."""
    COMPLETE = "complete"


class ObjectKind(StrEnum):
    CHUNK = "chunk"
    MANIFEST = "manifest"


class ObjectState(StrEnum):
    WANTED = "wanted"
    """A folder needs it, and no client has confirmed its upload."""
    PRESENT = "present"
    DOOMED = "doomed"
    """It is being deleted from the store. No upload of it begins before the last deletion has had its effect."""
