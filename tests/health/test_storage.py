"""Whose fault it is that checkpoints cannot be saved, at each threshold."""

from health.storage import Blamed, Failing, blamed_for
from muster.domain.ids import JobId, NodeId
from muster.domain.policy.training import StoragePolicy

POLICY = StoragePolicy()
NFS = "nfs01:/export"


def failing(
    place: str = NFS, *, node: str = "a", job: str = "1", kind: str = "io", times: int = 2, is_shared: bool = True
) -> Failing:
    return Failing(place, is_shared, NodeId(node), JobId(job), kind, times)


def whose(*each: Failing, policy: StoragePolicy = POLICY) -> list[Blamed | None]:
    found = blamed_for(each, policy)
    return [found.get(one) for one in each]


def test_one_failure_is_nobodys_yet_and_two_are_the_one_hosts() -> None:
    assert whose(failing(times=1)) == [None]
    assert whose(failing(times=2)) == [Blamed.NODE]
    assert whose(failing(times=1), policy=StoragePolicy(min_failures=1)) == [Blamed.NODE]


def test_a_shared_place_that_fails_on_as_many_hosts_as_it_takes_is_at_fault_itself() -> None:
    both = failing(node="a", times=1), failing(node="b", times=1)
    assert whose(*both) == [Blamed.STORAGE, Blamed.STORAGE]
    assert whose(*both, policy=StoragePolicy(min_hosts=3)) == [Blamed.NODE, Blamed.NODE]


def test_several_jobs_on_one_host_are_one_host() -> None:
    assert whose(failing(job="1"), failing(job="2")) == [Blamed.NODE, Blamed.NODE]


def test_own_disks_of_two_hosts_are_two_places_though_they_are_mounted_alike() -> None:
    own = [failing("/mnt", node=node, is_shared=False) for node in "ab"]
    assert whose(*own) == [Blamed.NODE, Blamed.NODE]
    assert whose(*(failing("/mnt", node=node, is_shared=False, times=1) for node in "ab")) == [None, None]
    assert whose(failing("/mnt", is_shared=False, kind="no_space")) == [Blamed.NODE], "its own room is its own"


def test_a_full_shared_place_is_full_for_all_whoever_found_it_so() -> None:
    assert whose(failing(kind="no_space")) == [Blamed.STORAGE]
    assert whose(failing(kind="no_space", times=1)) == [None]


def test_a_refusal_is_the_jobs_own_until_several_jobs_are_refused() -> None:
    assert whose(failing(kind="refused", times=9), failing(kind="refused", node="b", times=9)) == [
        Blamed.JOB,
        Blamed.JOB,
    ]
    assert whose(failing(kind="refused", job="1"), failing(kind="refused", job="2")) == [Blamed.STORAGE] * 2
    mixed = failing(kind="refused", node="b", times=9), failing(kind="io", node="a")
    assert whose(*mixed) == [Blamed.JOB, Blamed.NODE], "a job without rights makes no second host"


def test_places_are_judged_apart() -> None:
    assert whose(failing(NFS, node="a", times=1), failing("s3://bucket", node="b", times=1)) == [None, None]
    assert whose(failing(NFS, node="a"), failing("s3://bucket", node="b")) == [Blamed.NODE, Blamed.NODE]
