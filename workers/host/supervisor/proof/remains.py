"""The text of a proof that is not clean: what an attempt has left on its host."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


def what_is_left(proof: Mapping[str, Any]) -> str:
    """Return what the proof found, the most important first; empty if it is clean."""
    return "" if proof.get("clean") else "; ".join(_parts(proof)) or "something that its proof does not name"


def _parts(proof: Mapping[str, Any]) -> Iterator[str]:
    if count := proof.get("processes_left"):
        yield f"{count} of its processes"
    for gpu, pids in (proof.get("gpu_processes") or {}).items():
        numbers = ", ".join(map(str, pids))
        yield f"process {numbers} on {gpu}, which may be another program's: `nvidia-smi` shows it"
    for port in proof.get("ports_left") or ():
        yield f"a listener on port {port}"
    if proof.get("container_removed") is False:
        yield "its container"
    if proof.get("cgroup_empty") is False:
        yield "a control group that is not empty"
    if proof.get("scratch_removed") is False:
        yield "its scratch folder"
    if proof.get("secrets_removed") is False:
        yield "files of its secrets"
