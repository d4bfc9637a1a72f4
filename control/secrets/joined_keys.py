"""Keys of two holders, while values move from one to the other: one wraps, and each unwraps its own."""

from control.secrets.key_wrapping import KeyWrapper, WrappedKey


class JoinedKeys:
    """A ``KeyWrapper`` of keys in this process and of a service. ``by_service``: it wraps what is new.

    ``local`` is asked for its ids with each value; what it does not have is the service's.
    """

    def __init__(self, local: KeyWrapper, service: KeyWrapper, *, by_service: bool) -> None:
        self._local = local
        self._service = service
        self._active = service if by_service else local

    def active_key_id(self) -> str:
        return self._active.active_key_id()

    def key_ids(self) -> frozenset[str]:
        return self._local.key_ids() | self._service.key_ids()

    def wrap(self, data_key: bytes, about: bytes) -> WrappedKey:
        return self._active.wrap(data_key, about)

    def unwrap(self, wrapped: WrappedKey, about: bytes) -> bytes:
        return self._holder_of(wrapped).unwrap(wrapped, about)

    def rewrap(self, wrapped: WrappedKey, about: bytes) -> WrappedKey:
        holder = self._holder_of(wrapped)
        if holder is self._active:
            return holder.rewrap(wrapped, about)
        return self._active.wrap(holder.unwrap(wrapped, about), about)

    def _holder_of(self, wrapped: WrappedKey) -> KeyWrapper:
        return self._local if wrapped.key_id in self._local.key_ids() else self._service
