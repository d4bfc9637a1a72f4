"""Objects of the content store as a person reads them, with the folders that need each."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from control.content.types import ObjectName

_SHOWN: Final = 20


def named(name: "ObjectName", folders: "tuple[str, ...]") -> dict[str, object]:
    """Return the object for a document."""
    return {"tenant_id": name.tenant_id, "kind": name.kind, "digest": name.digest, "bundles": list(folders)}


def object_lines(objects: "Mapping[ObjectName, tuple[str, ...]]") -> Iterator[str]:
    """Yield a line for each of the first objects."""
    for name, folders in list(objects.items())[:_SHOWN]:
        first = ", ".join(each[:12] for each in folders[:3]) or "none"
        yield f"  {name.kind} {name.digest[:12]} of {name.tenant_id}; bundles that need it: {first}"
    if len(objects) > _SHOWN:
        yield f"  and {len(objects) - _SHOWN:,} more: --json lists all"
