"""The positions of a planned job's ranks as text: a line for each dimension of its layout, and one for rails."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_GROUPS: Final = {
    "tp": ("tensor-parallel group", "tensor-parallel groups"),
    "fsdp": ("group that shards a stage", "groups that shard a stage"),
    "pp": ("pipeline", "pipelines"),
}


def alignment_words(
    groups: Sequence[Mapping[str, Any]], rails: Mapping[str, Any] | None, num_hosts: int
) -> Iterator[str]:
    """Yield a line for each group and one for the rails.

    ``groups`` and ``rails`` come from the job's plan; ``num_hosts`` is the size of the gang.
    """
    for each in groups:
        one, many = _GROUPS[each["dimension"]]
        total, together, level = each["num_groups"], each["num_together"], each["level"]
        if together == total:
            yield f"each {one} has one {level}"
        else:
            yield f"{together} of {total} {many} have one {level} each, the others span several"
    if rails is not None:
        numbers = ", ".join(map(str, rails["rails"]))
        if rails["num_hosts"] == num_hosts:
            yield f"local ranks are on rails {numbers} on each host"
        else:
            yield (
                f"local ranks are on rails {numbers} on {rails['num_hosts']} of {num_hosts} hosts, and on others "
                "elsewhere, so that collectives cross from rail to rail"
            )
