import json
import os
import pickle
from typing import Any

import pytest

from watch.forensics.flight_recorder import MAX_ENTRIES, DumpError, read_dump
from watch.reports import Frame


def entry(number: int, **fields: Any) -> dict[str, Any]:
    """Return an entry as torch 2.13 writes it over gloo."""
    return {
        "collective_seq_id": number, "input_dtypes": ["Float"], "input_sizes": [[8]], "is_p2p": False, "op_id": number,
        "output_dtypes": ["Float"], "output_sizes": [[8]], "p2p_seq_id": 0, "pg_id": 0,
        "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "record_id": number - 1,
        "retired": True, "state": "scheduled", "time_created_ns": 1, "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0, "timeout_ms": 1800000, **fields,
    }  # fmt: skip


def document(*entries: object, **fields: Any) -> dict[str, Any]:
    groups = {"0": {"desc": "default_pg", "name": "0", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": list(entries), **fields}


def test_an_entry_of_gloo_is_completed_when_it_is_retired() -> None:
    dump = read_dump(json.dumps(document(entry(1), entry(2, retired=False))).encode())
    assert [(each.sequence, each.state) for each in dump.collectives] == [(1, "completed"), (2, "scheduled")]
    first = dump.collectives[0]
    assert (first.group, first.operation, first.sizes, first.dtype, first.ranks) == (
        "0",
        "all_reduce",
        (8,),
        "Float",
        (0, 1),
    )
    assert dump.notes == ()


def test_an_entry_of_nccl_keeps_its_own_state() -> None:
    nccl = entry(
        3, profiling_name="nccl:_all_gather_base", state="started", retired=True, process_group=("7", "mesh_tp")
    )
    found = read_dump(json.dumps(document(nccl)).encode()).collectives[0]
    assert (found.operation, found.state, found.group, found.description) == (
        "_all_gather_base",
        "started",
        "7",
        "mesh_tp",
    )


def test_a_send_has_the_number_of_its_pair() -> None:
    send = entry(9, profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id="4", state="started")
    found = read_dump(json.dumps(document(send)).encode()).collectives[0]
    assert (found.is_p2p, found.sequence, found.operation) == (True, 4, "send 0->1")


def test_a_pickle_of_plain_values_is_read_with_the_stack_of_the_newest_call() -> None:
    frames = [{"name": "all_reduce", "filename": "distributed_c10d.py", "line": 3245}]
    dump = read_dump(pickle.dumps(document(entry(1, retired=False, frames=frames)), protocol=2))
    assert dump.stack == (Frame("all_reduce", "distributed_c10d.py", 3245),)
    assert len(dump.collectives) == 1


class _Runs:
    """A pickle of it calls ``os.system`` when it is loaded by an ordinary unpickler."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch was-run",)


def test_a_pickle_that_names_code_is_refused_and_runs_nothing(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DumpError, match="holds plain values alone"):
        read_dump(pickle.dumps(document(_Runs()), protocol=2))
    assert list(tmp_path.iterdir()) == []


WHOLE = json.dumps(document(*(entry(number) for number in range(1, 9)))).encode()


@pytest.mark.parametrize("content", [WHOLE[:-40], WHOLE[: len(WHOLE) // 2], pickle.dumps(document(entry(1)), 2)[:-20]])
def test_a_dump_that_was_cut_off_is_refused_since_its_newest_entries_are_missing(content: bytes) -> None:
    with pytest.raises(DumpError, match="cut off"):
        read_dump(content)


@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b'{"version": "2.10"}', b'{"entries": {}}', b"\x80\x02."])
def test_other_files_are_refused_with_what_a_dump_has(content: bytes) -> None:
    with pytest.raises(DumpError):
        read_dump(content)


def test_another_version_is_read_as_far_as_it_is_known() -> None:
    odd = [entry(1), {"collective_seq_id": "x"}, 7, entry(2, input_sizes="new", process_group=None, input_dtypes=None)]
    dump = read_dump(json.dumps(document(*odd, version="3.1", pg_config=[])).encode())
    assert [(each.sequence, each.sizes, each.ranks) for each in dump.collectives] == [(1, (8,), ()), (2, (), ())]
    assert dump.notes == (
        "its version is 3.1, and 2.x is known: known fields are read",
        "2 of 4 entries are not readable and were left out",
    )


def test_the_newest_entries_are_kept() -> None:
    dump = read_dump(json.dumps(document(*(entry(number) for number in range(1, MAX_ENTRIES + 100)))).encode())
    assert len(dump.collectives) == MAX_ENTRIES
    assert dump.collectives[-1].sequence == MAX_ENTRIES + 99
