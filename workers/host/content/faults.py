"""Why a host has no bundle for a program, and whose fault that is."""


class FetchError(Exception):
    """The bundle is not here."""

    IS_OF_HOST = True


class NoRoomError(FetchError):
    """This host's disk, or its space for bundles and environments, is full."""


class StoreError(FetchError):
    """The content store or the control plane gave no permission to read."""


class BrokenBundleError(FetchError):
    """The bundle is not whole in the store, or is no bundle: no other host can get it either."""

    IS_OF_HOST = False


class LostObjectError(BrokenBundleError):
    """The store lacks an object of a folder, or has it with other bytes. ``digest``: of the object."""

    def __init__(self, words: str, digest: str) -> None:
        super().__init__(words)
        self.digest = digest


class NotBuiltError(FetchError):
    """This host cannot build the environment or the commit's bundle, or cannot have it in time."""


class BrokenBuildError(FetchError):
    """The environment cannot be built from its lock file, or the bundle from its commit: no other host can either."""

    IS_OF_HOST = False
