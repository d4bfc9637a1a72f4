import json
from pathlib import Path
from typing import Any

import pytest

from muster.cli.job.hang_folder import OWN_RECORDS, Bundle, read_bundle
from watch.fields import FieldError
from watch.forensics.documents import from_document, to_document
from watch.forensics.judge import judge_hang
from watch.phases import Phase
from watch.reports import Collective, Frame, HostReport, ProcessState, RankReport, StackSource
from workers.host.line_findings import FINDINGS
from workers.host.supervisor import files
from workers.host.watch.host_watch import DURATIONS

RANK = RankReport(
    rank=3,
    phase=Phase.DATA,
    step=12,
    ticks=40,
    still_s=31.5,
    is_declared=True,
    process=ProcessState.SLEEPING,
    cpu_share=0.02,
    gpu="GPU-1",
    stack=(Frame("wait", "threading.py", 320), Frame("futex_wait_queue")),
    stack_source=StackSource.PY_SPY,
    collectives=(Collective("0", 4, "all_reduce", (8, 2), "float", "started", (0, 3), "muster", True, "dp"),),
    lines=("loading", "…"),
)
REPORT = HostReport("node-a", 1_795_792_065_108, (RANK,), ("NCCL WARN x",), {"gpu.0.utilisation": 1.0})


def test_a_report_comes_back_from_its_document_through_json() -> None:
    assert from_document(json.loads(json.dumps(to_document(REPORT)))) == REPORT


def test_a_field_of_a_later_release_is_skipped_and_optional_ones_may_be_missing() -> None:
    document = {"version": 1, "node": "a", "at_ms": 1, "ranks": [{"rank": 0, "phase": "step", "mood": 7}], "later": {}}
    assert from_document(document).ranks == (RankReport(0, Phase.STEP),)


def _with(**fields: Any) -> dict[str, Any]:
    return {"version": 1, "node": "a", "at_ms": 1, "ranks": [{"rank": 0, "phase": "step", **fields}]}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "the document: must be an object, not a list"),
        ({"version": 2, "node": "a", "at_ms": 1}, "version: 2 is not known; 1 is accepted"),
        ({"version": 1, "at_ms": 1}, "node: is missing"),
        ({"version": 1, "node": "a", "at_ms": True}, "at_ms: must be a whole number from 0, not true"),
        (_with(phase="nap"), "ranks[0].phase: must be one of start, import"),
        (_with(rank=-1), "ranks[0].rank: must be a whole number from 0, not -1"),
        (_with(still_s=float("nan")), "ranks[0].still_s: must be a finite number"),
        (_with(stack=[{"function": 3}]), "ranks[0].stack[0].function: must be text"),
        (_with(stack=[{"function": "f"}] * 257), "ranks[0].stack: has 257 items; at most 256 are accepted"),
        (_with(collectives=[{"group": "0", "sequence": 1, "operation": "x", "ranks": "all"}]), "ranks[0].collectives"),
        (_with(is_declared=1), "ranks[0].is_declared: must be true or false, not 1"),
    ],
)
def test_a_document_that_is_no_report_is_refused_by_the_fields_name(document: object, words: str) -> None:
    with pytest.raises(FieldError) as caught:
        from_document(document)
    assert words in str(caught.value)


def test_a_folder_gives_its_reports_and_names_the_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "host-a.json").write_text(json.dumps(to_document(REPORT)))
    (tmp_path / "host-b.json").write_text('{"version": 1, "node": "b", "at')
    bundle = read_bundle(tmp_path)
    assert bundle.reports == (REPORT,)
    assert len(bundle.notes) == 1
    assert bundle.notes[0].startswith("host-b.json: not used: ")


def _dump(*numbers: int, is_done: bool = True, num_ranks: int = 0) -> str:
    entries = [
        {"collective_seq_id": n, "profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"],
         "record_id": n, "retired": is_done or n != numbers[-1], "state": "scheduled", "input_sizes": [[8]],
         "input_dtypes": ["Float"]}
        for n in numbers
    ]  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(num_ranks)))}} if num_ranks else {}
    return json.dumps({"version": "2.10", "entries": entries, "pg_config": groups})


def test_dumps_and_logs_join_the_ranks_that_their_names_state(tmp_path: Path) -> None:
    (tmp_path / "fr-0.json").write_text(_dump(4, 5, is_done=False))
    (tmp_path / "nccl_trace_rank_1").write_text(_dump(3, 4))
    (tmp_path / "attempt_0" / "1").mkdir(parents=True)
    (tmp_path / "attempt_0" / "1" / "stderr.log").write_text(
        "step 4\nRuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly\n"
    )
    (tmp_path / "dmesg-node-a.log").write_text("[1.2] Out of memory: Killed process 4711 (python)\n")
    bundle = read_bundle(tmp_path)
    ranks = {rank.rank: rank for report in bundle.reports for rank in report.ranks}
    assert [each.sequence for each in ranks[0].collectives] == [4, 5]
    assert ranks[1].lines == ("RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly",)
    assert {report.node: report.lines for report in bundle.reports}["node-a"] == (
        "[1.2] Out of memory: Killed process 4711 (python)",
    )
    assert (bundle.notes, bundle.num_used) == ((), 4)
    verdict = judge_hang(bundle.reports)
    assert (verdict.cause, verdict.ranks, verdict.waiting) == ("data_loader", (1,), (0,))


def test_a_dump_joins_the_host_report_of_its_rank(tmp_path: Path) -> None:
    (tmp_path / "host-node-a.json").write_text(json.dumps(to_document(REPORT)))
    (tmp_path / "fr-3.json").write_text(_dump(1, 2))
    rank = read_bundle(tmp_path).reports[0].ranks[0]
    assert [each.source for each in rank.collectives] == ["muster", "flight_recorder", "flight_recorder"]
    assert rank.stack == RANK.stack


def test_one_log_of_all_ranks_gives_each_its_lines(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "[rank0]:[E1120 10:22:31.5 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"
        "n1:98:12 [3] NCCL WARN NET/IB : Got completion from peer 10.7.1.9<4> with status=12 opcode=0\n"
        "n1:98:12 [3] NCCL INFO Using network IB\n"
    )
    bundle = read_bundle(tmp_path)
    assert bundle.transports == ("rdma in 1 logs",)
    verdict = judge_hang(bundle.reports)
    assert (verdict.cause, verdict.ranks, verdict.node) == ("network", (), "n1")
    assert verdict.sentence.startswith("Host n1 reports a fault of the network: n1:98:12 [3] NCCL WARN")


def test_what_cannot_be_used_is_named_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "fr-0.json").write_text(_dump(4, 5, is_done=False))
    (tmp_path / "fr-1.json").write_text(_dump(3, 4, 5)[:-30])
    (tmp_path / "fr.json").write_text(_dump(1))
    (tmp_path / "core.4711").write_bytes(b"\x7fELF")
    (tmp_path / "link.log").symlink_to("/etc/passwd")
    bundle = read_bundle(tmp_path)
    assert [note.split(":")[0] for note in bundle.notes] == ["core.4711", "fr-1.json", "fr.json"]
    assert "its name does not end with the rank" in bundle.notes[2]
    assert {rank.rank for report in bundle.reports for rank in report.ranks} == {0, 1}
    verdict = judge_hang(bundle.reports)
    assert (verdict.cause, verdict.ranks) == ("unknown", (1,)), "a dump that was cut off makes no rank lag"
    assert "gave no usable dump" in verdict.sentence


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_rank_whose_files_were_not_collected_is_not_stated_as_dead(tmp_path: Path, *, is_cut_off: bool) -> None:
    for rank in (0, 1, 2):
        (tmp_path / f"fr-{rank}.json").write_text(_dump(4, 5, is_done=False, num_ranks=4))
    if is_cut_off:
        (tmp_path / "fr-1.json").write_text(_dump(4, 5, is_done=False, num_ranks=4)[:-30])
    verdict = judge_hang(read_bundle(tmp_path).reports)
    assert (verdict.cause, verdict.ranks) == ("unknown", (1, 3) if is_cut_off else (3,))
    beside = ", and rank 1 no usable dump of its collectives" if is_cut_off else ""
    waits = "ranks 0 and 2 wait" if is_cut_off else "ranks 0, 1 and 2 wait"
    assert verdict.sentence.startswith(f"Rank 3 gave no dump and no report{beside}; {waits} in all_reduce, number 5")


def test_a_host_that_reports_no_process_of_a_rank_states_it_as_dead(tmp_path: Path) -> None:
    """Its other ranks' states are known, so that rank's process was looked for."""
    for rank in (0, 1, 2):
        (tmp_path / f"fr-{rank}.json").write_text(_dump(4, 5, is_done=False, num_ranks=4))
    alive = HostReport("node-a", 1, (RankReport(0, Phase.STEP, process=ProcessState.SLEEPING),))
    (tmp_path / "host-node-a.json").write_text(json.dumps(to_document(alive)))
    assert judge_hang(read_bundle(tmp_path).reports).cause == "dead_rank"


def test_records_that_muster_keeps_of_an_attempt_are_no_faulty_files(tmp_path: Path) -> None:
    written = {name for kind, name in vars(files).items() if kind.isupper() and isinstance(name, str)}
    own = {name for name in written if name.endswith((".json", ".jsonl", ".lock"))} | {DURATIONS, FINDINGS}
    assert own == OWN_RECORDS
    by_rank = {"ranks/0.json", "ranks/0.exit.json", "logs/0.json", "logs/launcher.json", "sensors/stack-0.json"}
    for name in own | by_rank:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"pid": 1}\n')
    (tmp_path / "ranks" / ".0.exit.json.3966").write_text('{"code": ')  # its writer was killed
    assert read_bundle(tmp_path) == Bundle(())
    (tmp_path / "logs" / "0.json").write_text(_dump(4, 5))
    assert read_bundle(tmp_path).num_used == 1, "a dump under that name is read"


def test_a_folder_without_files_has_nothing(tmp_path: Path) -> None:
    assert read_bundle(tmp_path) == Bundle(())


def test_a_log_whose_lines_are_json_is_still_a_log(tmp_path: Path) -> None:
    lost = "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly"
    (tmp_path / "rank-1.log").write_text('{"level": "info"}\n' + lost + "\n")
    bundle = read_bundle(tmp_path)
    assert (bundle.notes, judge_hang(bundle.reports).cause) == ((), "data_loader")


@pytest.mark.parametrize("name", ["fr-0.json", "host-a.json", "fr-1.pickle"])
def test_a_file_too_large_for_a_report_or_dump_is_not_read(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(50 << 30)
    bundle = read_bundle(tmp_path)
    assert bundle.num_used == 0
    assert "53,687,091,200 bytes" in bundle.notes[0]
