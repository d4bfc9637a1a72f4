"""Ranks that mpirun or srun has started: the rank of this process, if torch's variables do not state it.

For a command that starts several ranks on a host, Muster sets their number (``WORLD_SIZE``, ``LOCAL_WORLD_SIZE``,
``NODE_RANK``), but not the rank of a process: its launcher sets that, each in variables of its own. Either each host
has a launcher of its own, which counts its own ranks alone, or one launcher over all hosts counts all of them.

Variables: Open MPI, docs.open-mpi.org "Environment variables"; MPICH's Hydra and Intel MPI; srun(1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
"""Rank, number of ranks, and rank on the host; the first launcher that is set is the nearest to the process."""
_HOW = "RANK = NODE_RANK × NPROC_PER_NODE + LOCAL_RANK"


def take_rank(environ: MutableMapping[str, str]) -> None:
    """Set torch's variables too, if they are missing: ``RANK``, and ``LOCAL_RANK`` if the launcher gives it."""
    world_size = _number(environ, "WORLD_SIZE")
    if environ.get("RANK") or world_size is None or (own := _own(environ)) is None:
        return
    rank, size, local_rank = own
    if size == world_size:
        environ["RANK"] = str(rank)
    elif size == _number(environ, "LOCAL_WORLD_SIZE"):
        environ["RANK"] = str((_number(environ, "NODE_RANK") or 0) * size + rank)
        local_rank = rank
    else:
        return
    if local_rank is not None and not environ.get("LOCAL_RANK"):
        environ["LOCAL_RANK"] = str(local_rank)


def require_rank(environ: Mapping[str, str]) -> None:
    """Raise ValueError if the rank is unknown, since each of several ranks would act as the first.

    Raises:
        ValueError: this process is one of several, and no variable states which.
    """
    world_size = _number(environ, "WORLD_SIZE") or 1
    if world_size > 1 and not environ.get("RANK"):
        raise ValueError(
            f"WORLD_SIZE={world_size} and no RANK: a launcher of several ranks on a host must set each rank's, {_HOW}; "
            "with Open MPI, MPICH and Slurm it is known if they start as many as WORLD_SIZE or LOCAL_WORLD_SIZE says"
        )
    own = _own(environ)
    is_contracts = environ.get("MUSTER_ATTEMPT_ID") and not environ.get("TORCHELASTIC_RUN_ID")
    if own is not None and is_contracts and own[1] > 1 and environ.get("LOCAL_WORLD_SIZE") == "1" and world_size == 1:
        raise ValueError(
            f"WORLD_SIZE=1, and {own[1]} ranks were started: submit the job with --ranks {own[1]}, so that each gets "
            "its rank"
        )


def _own(environ: Mapping[str, str]) -> tuple[int, int, int | None] | None:
    for rank_name, size_name, local_name in _LAUNCHERS:
        rank, size = _number(environ, rank_name), _number(environ, size_name)
        if rank is not None and size is not None:
            return rank, size, _number(environ, local_name)
    return None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None
