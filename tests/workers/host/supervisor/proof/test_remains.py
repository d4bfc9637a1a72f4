"""The text of what an attempt has left on its host."""

from workers.host.supervisor.proof.remains import what_is_left

NOTHING = {"container_removed": True, "cgroup_empty": True, "scratch_removed": True, "secrets_removed": True}


def test_a_clean_proof_has_nothing_left() -> None:
    assert what_is_left({"clean": True, **NOTHING}) == ""


def test_another_programs_process_on_the_gpu_is_named_with_its_gpu() -> None:
    proof = {"clean": False, **NOTHING, "processes_left": 0, "gpu_processes": {"GPU-1": [41, 42]}}
    assert what_is_left(proof).startswith("process 41, 42 on GPU-1, which may be another program's")


def test_each_part_that_is_left_is_named() -> None:
    left = dict.fromkeys(NOTHING, False)
    proof = {"clean": False, **left, "processes_left": 2, "ports_left": [29400]}
    text = what_is_left(proof)
    parts = ("2 of its processes", "port 29400", "container", "control group", "scratch", "secrets")
    assert all(part in text for part in parts)
