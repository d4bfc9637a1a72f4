"""The rank of a process that mpirun or srun has started, and the cases in which it is unknown."""

import pytest

from muster.train.parallel.foreign_launchers import require_rank, take_rank
from muster.train.runtime.environment import Environment

TWO_HOSTS = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1", "MUSTER_ATTEMPT_ID": "att_1"}
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")


def reported(names: tuple[str, str, str], rank: int, size: int, local_rank: int) -> dict[str, str]:
    return dict(zip(names, map(str, (rank, size, local_rank)), strict=True))


@pytest.mark.parametrize("names", [OPEN_MPI, MPICH, SLURM], ids=["open mpi", "mpich", "slurm"])
def test_a_launcher_of_each_host_counts_its_own_ranks(names: tuple[str, str, str]) -> None:
    environ = TWO_HOSTS | reported(names, rank=1, size=2, local_rank=1)
    take_rank(environ)
    assert (environ["RANK"], environ["LOCAL_RANK"]) == ("3", "1")
    require_rank(environ)
    assert Environment.of(environ).rank == 3


def test_a_launcher_over_all_hosts_counts_all_ranks() -> None:
    environ = TWO_HOSTS | reported(OPEN_MPI, rank=2, size=4, local_rank=0)
    take_rank(environ)
    assert (environ["RANK"], environ["LOCAL_RANK"]) == ("2", "0")


def test_what_another_has_stated_stays() -> None:
    environ = TWO_HOSTS | reported(OPEN_MPI, rank=1, size=2, local_rank=1) | {"RANK": "0"}
    take_rank(environ)
    assert environ["RANK"] == "0"
    assert "LOCAL_RANK" not in environ


@pytest.mark.parametrize(
    "environ",
    [reported(SLURM, rank=1, size=8, local_rank=1), TWO_HOSTS | reported(OPEN_MPI, rank=1, size=3, local_rank=1), {}],
    ids=["no variable names a number of ranks", "as many as no variable named", "nothing"],
)
def test_a_process_that_may_be_none_of_its_ranks_is_reported_nothing(environ: dict[str, str]) -> None:
    before = dict(environ)
    take_rank(environ)
    assert environ == before


def test_one_of_several_that_none_distinguishes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"WORLD_SIZE=4 and no RANK: .* RANK = NODE_RANK × NPROC_PER_NODE"):
        Environment.of(TWO_HOSTS)


def test_several_where_the_job_has_one_are_refused_and_reported_how_to_submit() -> None:
    contract = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MUSTER_ATTEMPT_ID": "att_1"}
    with pytest.raises(ValueError, match="submit the job with --ranks 2"):
        Environment.of(contract | reported(OPEN_MPI, rank=1, size=2, local_rank=1))
    Environment.of(contract | reported(OPEN_MPI, rank=0, size=1, local_rank=0))
    Environment.of(contract | reported(SLURM, rank=0, size=2, local_rank=0) | {"TORCHELASTIC_RUN_ID": "r"})
