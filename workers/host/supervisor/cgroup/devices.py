"""Character devices that a group's processes may neither open nor make, by either version of the kernel's groups.

Version 1 has a controller that takes a list. Version 2 runs our own program at each open and mknod, which is assembled
here by hand, since it only compares numbers. It stays with the group when we die, and is removed with it.

Documentation/admin-guide/cgroup-v1/devices.rst and cgroup-v2.rst ("Device controller") of the kernel; instructions:
Documentation/bpf/standardization/instruction-set.rst; numbers: include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import os
import struct

from workers.host.supervisor.cgroup.place import NONE, V1_DEVICES, V2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from workers.host.supervisor.cgroup.group import Group

    Device = tuple[int, int]
    """Major and minor number."""

_ALL_BUT = "a *:* rwm"
"""Line of a group of version 1 that may open all devices except denied ones. systemd's ``DevicePolicy`` makes the
others, which may open only the listed ones.
"""
_ANY = "*"
_OPENS = frozenset("rw")
"""Accesses that open a file; the third one, ``m``, makes it."""
_MOST_MINORS = 512
"""Most minors of one major for GPUs, render nodes or MIG capabilities."""
_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE = 15, 6
_ALLOW_MULTI = 2
"""Flag that keeps a denial of a group above ours: all programs run, and each must allow."""
_CHARACTER = 2
_LOAD, _AND, _SET, _IF_EQUAL, _UNLESS_EQUAL, _EXIT = 0x61, 0x54, 0xB7, 0x15, 0x55, 0x95
_CONTEXT, _KIND, _MAJOR, _MINOR, _RESULT = 1, 2, 3, 4, 0
_libc = ctypes.CDLL(None, use_errno=True)


class NotBarredError(OSError):
    """The kernel does not bar the group from these devices; the message has the reason."""


def bar(group: Group, devices: Sequence[Device]) -> None:
    """Bar the group from devices from now on; open files stay open. Raises OSError: they are not barred, or not all of
    them.
    """
    if group.kind == NONE:
        raise NotBarredError("the attempt has no group of the kernel's")
    if group.kind == V2:
        _attach(group.folders[""], program(devices))
        return
    folder = group.folders.get(V1_DEVICES)
    if folder is None:
        raise NotBarredError("no group of version 1 for devices can be made")
    _deny(folder, devices)


def _deny(folder: Path, devices: Sequence[Device]) -> None:
    listed = (folder / "devices.list").read_text(encoding="ascii").splitlines()
    if listed == [_ALL_BUT]:
        _write_each(folder / "devices.deny", (f"c {major}:{minor} rwm" for major, minor in devices))
        return
    for line in listed:
        _take_off_list(folder, line, devices)


def _take_off_list(folder: Path, line: str, devices: Sequence[Device]) -> None:
    """Remove barred devices from the list of a group that may open only listed devices.

    There, a denial of a device under a wildcard silently has no effect. So the wildcard is removed, and every device
    that it covered and that is not barred is listed by its number. That is not possible for a wildcard over all
    devices; Docker lists them for making alone, and making a file opens nothing.
    """
    kind, number, access = line.split()
    major, _, minor = number.partition(":")
    if kind != "c":
        return
    if major == _ANY and not _OPENS & set(access):
        return
    if major == _ANY:
        raise NotBarredError(f"{folder} lists every device: {line}")
    barred = {each[1] for each in devices if each[0] == int(major)}
    if not barred or (minor != _ANY and int(minor) not in barred):
        return
    _write_each(folder / "devices.deny", [line])
    if minor == _ANY:
        others = (each for each in range(_MOST_MINORS) if each not in barred)
        _write_each(folder / "devices.allow", (f"c {major}:{each} {access}" for each in others))


def _write_each(path: Path, lines: Iterable[str]) -> None:
    """Write one line at a time, as the kernel requires."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for line in lines:
            os.write(descriptor, f"{line}\n".encode())
    except OSError as fault:
        raise NotBarredError(f"{path}: {fault.strerror}") from fault
    finally:
        os.close(descriptor)


def program(devices: Sequence[Device]) -> bytes:
    """Return a program that answers 0, a denial, for these character devices, and 1 for all others, for
    every access.
    """
    by_major: dict[int, list[int]] = {}
    for major, minor in devices:
        by_major.setdefault(major, []).append(minor)
    num_tests = sum(1 + len(minors) for minors in by_major.values())
    code = [
        _instruction(_LOAD, _KIND, _CONTEXT, offset=0),
        _instruction(_AND, _KIND, value=0xFFFF),  # the bits above are the kind of access
        _instruction(_LOAD, _MAJOR, _CONTEXT, offset=4),
        _instruction(_LOAD, _MINOR, _CONTEXT, offset=8),
        _instruction(_UNLESS_EQUAL, _KIND, offset=num_tests, value=_CHARACTER),
    ]
    left = num_tests
    for major, minors in by_major.items():
        left -= 1
        code.append(_instruction(_UNLESS_EQUAL, _MAJOR, offset=len(minors), value=major))
        for minor in minors:
            left -= 1
            code.append(_instruction(_IF_EQUAL, _MINOR, offset=left + 2, value=minor))
    code += [_instruction(_SET, _RESULT, value=1), _instruction(_EXIT)]
    code += [_instruction(_SET, _RESULT, value=0), _instruction(_EXIT)]
    return b"".join(code)


def _instruction(code: int, target: int = 0, source: int = 0, *, offset: int = 0, value: int = 0) -> bytes:
    """Return one instruction. ``offset``: into the context, or the instructions that a jump skips.

    Hosts of GPUs are little-endian.
    """
    return struct.pack("<BBhi", code, target | source << 4, offset, value)


def _attach(folder: Path, code: bytes) -> None:
    held, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Dual MIT/GPL")
    where = (ctypes.addressof(held), ctypes.addressof(licence))
    # No log of the verifier, no flags; the attach type stands last.
    load = struct.pack("<IIQQIIQII16sII", _TYPE_CGROUP_DEVICE, len(code) // 8, *where, 0, 0, 0, 0, 0, b"", 0, 0)
    loaded = _bpf(_PROG_LOAD, load)
    try:
        into = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_PROG_ATTACH, struct.pack("<IIII", into, loaded, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))
        finally:
            os.close(into)
    finally:
        os.close(loaded)


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALLS.get(os.uname().machine)
    if number is None:
        raise NotBarredError(f"the number of the system call bpf is not known for {os.uname().machine}")
    given = ctypes.create_string_buffer(attributes, len(attributes))
    answer = int(_libc.syscall(number, command, given, len(attributes)))
    if answer < 0:
        fault = ctypes.get_errno()
        raise OSError(fault, f"the kernel takes no program for devices: {os.strerror(fault)}")
    return answer
