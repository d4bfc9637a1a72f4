"""``muster xid``: an XID's row, and the XIDs of a log on stdin, read without a server."""

import json
import subprocess
import sys

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import Command

LOG = b"""[  12.5] usb 1-1: new device
\x00\xff\xfe\x1b[31m[171167.6] NVRM: Xid (PCI:0000:05:00): 95, pid=77, name=python3, Uncontained\x1b[0m
NVRM: Xid (PCI:0000:41:00): 74, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0)
nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
NVRM: Xid (PCI:0000:07:00): 9999, from a driver to come"""


def piped(log: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "muster", "xid", *words]
    return subprocess.run(command, input=log, capture_output=True, check=False, timeout=60)


def test_each_fault_of_a_log_is_one_object_a_line_and_other_lines_give_nothing() -> None:
    answer = piped(LOG, "--json")
    assert (answer.returncode, answer.stderr) == (Exit.OK, b"")
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [(one["kind"], one["code"], one["pci"], one["class"], one["action"], one["scope"]) for one in found] == [
        ("xid", 95, "0000:05:00", "reset_gpu", "reset_gpu", "all"),
        ("xid", 74, "0000:41:00", "hardware", "field_diagnosis", "A100,H100"),
        ("sxid", 20034, "0000:a9:00.0", "reset_gpu", "drain_and_reset", "fabric"),
        ("xid", 9999, "0000:07:00", "monitor", "monitor", "all"),
    ]
    assert (found[0]["process"], found[0]["since_boot_s"], found[1]["link"]) == ("python3", 171167.6, 6)
    assert all(one["source"] for one in found)
    assert piped(b"nothing of the kind\n", "--json").stdout == b""
    assert piped(b"").returncode == Exit.OK


def test_the_words_of_a_contained_error_decide_class_and_action_alike() -> None:
    line = b"NVRM: Xid (PCI:0000:07:00): 94, pid=7, name=python3, Contained: SM (0x1). RST: No, D-RST: No"
    found = json.loads(piped(line, "--json").stdout)
    assert (found["class"], found["action"], found["unit"]) == ("restart_app", "restart_job", "SM")
    assert piped(line).stdout.decode().startswith("0000:07:00  XID 94  restart_job: ")
    assert piped(line).stdout.decode().endswith(", unit SM (python3, pid 7)\n")


def test_a_person_reads_a_line_a_fault() -> None:
    said = piped(LOG).stdout.decode().splitlines()
    assert len(said) == 4
    assert said[0] == "0000:05:00  XID 95  reset_gpu: uncorrectable memory error, not contained (python3, pid 77)"
    assert "register 1 bit 16 (mechanical: reseat, then diagnose)" in said[1]


def test_a_code_is_reported_with_why_and_whose_word_it_is(muster: Command) -> None:
    said = muster.run("xid", "63")
    assert said.returncode == Exit.OK, said.stderr
    assert "XID 63" in said.stdout
    assert "monitor (NVIDIA: ignore)" in said.stdout
    known = json.loads(muster.run("xid", "95", "--json").stdout)
    assert (known["kind"], known["pci"], known["threatens_correctness"]) == ("xid", None, True)
    unknown = json.loads(muster.run("xid", "9999", "--json").stdout)
    assert (unknown["class"], unknown["action"]) == ("monitor", "monitor")


@pytest.mark.parametrize("word", ["0", "-1", "ninety-five", "9999999999"])
def test_what_is_no_code_is_refused(muster: Command, word: str) -> None:
    said = muster.run("xid", "--", word)
    assert said.returncode == Exit.USAGE
    assert "Traceback" not in said.stderr
