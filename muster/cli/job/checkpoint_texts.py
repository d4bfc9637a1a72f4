"""Texts of ``muster ckpt`` about a generation."""

from datetime import UTC, datetime
from typing import Any, Final

from muster.cli.framework.tables import Document
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import Manifest

HALF: Final = "half written"
_RNG_WORDS: Final = {
    "seeded": "seeded by the program's seed and the rank, as training began at step 0",
    "saved": "each rank's own, as saved by as many ranks",
    "saved_by_more": "each rank's own, as saved; states of ranks that no longer exist were dropped",
    "saved_by_fewer": "of the first ranks their own, as saved; of the others seeded by step and rank",
}
"""Texts for the policies of ``muster.train.runtime.rng.policy``, which needs torch."""


def document(
    generation: Generation, state: str, about: Manifest | None, why: str = "", *, is_good: bool, is_pinned: bool
) -> Document:
    committed_at = None
    if about is not None:
        committed_at = datetime.fromtimestamp(about.committed_at_unix_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "step": generation.step,
        "fence": generation.fence,
        "generation": generation.name,
        "state": state,
        "why": why,
        "is_good": is_good,
        "is_pinned": is_pinned,
        "num_ranks": None if about is None else about.world_size,
        "num_bytes": None if about is None else about.num_bytes,
        "loss": None if about is None else about.loss,
        "committed_at": committed_at,
        "key_id": None if about is None else about.key_id,
    }


def half_document(step: int, fence: int) -> Document:
    why = "it was never committed; a resume passes it over"
    empty = dict.fromkeys(("num_ranks", "num_bytes", "loss", "committed_at", "key_id"))
    return {
        "step": step,
        "fence": fence,
        "generation": None,
        "state": HALF,
        "why": why,
        "is_good": False,
        "is_pinned": False,
        **empty,
    }


def lineage_words(lineage: dict[str, Any] | None) -> list[str]:
    if lineage is None:
        return ["  its origin is not known: an older runtime saved it"]
    changed = {"True": ", with changes", "False": ", unchanged"}.get(str(lineage.get("git_is_dirty")), "")
    commit = "" if lineage.get("git_commit") is None else f", git {lineage['git_commit']}{changed}"
    said = [
        f"  made by code {or_dash(lineage.get('code_sha256'))}{commit}",
        f"  configuration {or_dash(lineage.get('config_sha256'))}, data {or_dash(lineage.get('data_sha256'))}",
        *(f"    {each['sha256']}  {each['source']}" for each in lineage.get("data") or ()),
        f"  after {lineage.get('parent') or 'no checkpoint'}; Python {or_dash(lineage.get('python_version'))}",
    ]
    if lineage.get("rng") in _RNG_WORDS:
        said.append(f"  random numbers {_RNG_WORDS[lineage['rng']]}")
    if lineage.get("spec_sha256"):
        said.append(f"  specification {lineage['spec_sha256']}")
    if lineage.get("bundle"):
        said.append(f"  bundle {lineage['bundle']}")
    said += [f"  environment {digest}" for digest in lineage.get("environments") or ()]
    return said


def or_dash(value: Any) -> Any:
    return "–" if value is None else value
