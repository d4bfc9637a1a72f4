"""Environments of a job as a person reads them: the state of each build, and why one failed."""

from typing import TYPE_CHECKING

from muster.sizes import size_in_words

if TYPE_CHECKING:
    from muster import documents

_BUILD_STATES = {"waiting": "waits to be built", "building": "is being built", "built": "is built", "failed": "failed"}


def environment_words(build: "documents.EnvironmentBuild") -> str:
    """Return one line about a build."""
    source = build.get("source")
    size = "" if build["num_bytes"] is None else f", {size_in_words(build['num_bytes'])}"
    where = "" if build["node_name"] is None else f" on {build['node_name']}"
    words = f": {build['words']}" if build["words"] else ""
    state = _BUILD_STATES.get(build["state"], build["state"])
    if source is not None:
        digest = "" if build["digest"] is None else f", {build['digest'][:12]}"
        return f"bundle of {source} {state}{where}{digest}{size}{words}"
    return f"environment {build['key'][:12]} for {build['interpreter']} {state}{where}{size}{words}"
