"""Errors of folders and manifests. Each text names the path, the fault, and what to do."""


class ContentError(Exception):
    """A folder or manifest that cannot be used."""


class FolderError(ContentError):
    """A work folder cannot be taken as it is."""


class ChangedFileError(FolderError):
    """A file is not as it was when its digest was taken."""

    def __init__(self, path: str, words: str) -> None:
        super().__init__(words)
        self.path = path


class FolderTooLargeError(FolderError):
    """A work folder has more bytes or files than a bundle may have."""


class ManifestError(ContentError):
    """A manifest is not one, or would write outside of its folder."""


class ArchiveError(ContentError):
    """An archive is not one, or would write outside of its folder, or has what no folder of plain files has."""


class DamagedError(ContentError):
    """Content does not match its digest."""


def shown(path: str) -> str:
    """Return a path for a message: control characters are escaped, so that a name cannot forge a line."""
    return path if path.isprintable() else ascii(path)[1:-1]
