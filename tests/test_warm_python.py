"""What stands for an interpreter ends, talks and dies as one does."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.train.marks import TRAINS
from tests.waiting import wait_until
from tests.warm_python import MODULES, WarmPython, WarmServer

pytestmark = TRAINS
SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def ran(warm: WarmPython, code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(warm.path), "-I", "-c", code, *arguments]
    return subprocess.run(command, env={"PATH": os.environ["PATH"], **variables}, capture_output=True, text=True)  # noqa: PLW1510  # the code is what is asked


def test_it_has_its_arguments_environment_and_streams(warm_python: WarmPython) -> None:
    code = "import os, sys; print(sys.argv, os.environ['WORD'], os.getcwd()); print('wrong', file=sys.stderr)"
    ended = ran(warm_python, code, "a", "b c", WORD="given")
    assert ended.stdout == f"['-c', 'a', 'b c'] given {Path.cwd()}\n"
    assert (ended.stderr, ended.returncode) == ("wrong\n", 0)


def test_others_see_its_own_environment(warm_python: WarmPython) -> None:
    code = "print(open('/proc/self/environ').read().rstrip(chr(0)).split(chr(0)))"
    assert "'WORD=said'" in ran(warm_python, code, WORD="said").stdout
    assert "'WORD=more'" in ran(warm_python, code, WORD="more").stdout


def test_it_has_torch_before_it_is_queried(warm_python: WarmPython) -> None:
    assert ran(warm_python, "import sys; print('torch' in sys.modules)").stdout == "True\n"


def test_it_runs_a_module_as_the_main_one(warm_python: WarmPython) -> None:
    command = [str(warm_python.path), "-m", "calendar", "2026", "1"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.stdout.startswith("    January 2026"), shown.stderr


def test_it_makes_files_with_the_rights_that_its_caller_states(warm_python: WarmPython, tmp_path: Path) -> None:
    for mask, mode in (("077", 0o600), ("022", 0o644)):
        command = f'umask {mask}; exec {warm_python.path} -c \'open("{tmp_path}/{mask}", "w").close()\''
        subprocess.run(["/bin/sh", "-c", command], check=True)
        assert (tmp_path / mask).stat().st_mode & 0o777 == mode


def test_it_ends_by_its_code_its_fault_or_its_signal(warm_python: WarmPython) -> None:
    assert ran(warm_python, "raise SystemExit(7)").returncode == 7
    failed = ran(warm_python, "raise ValueError('bad shape')")
    assert failed.returncode == 1
    assert failed.stderr.endswith("ValueError: bad shape\n")
    for number in (signal.SIGKILL, signal.SIGTERM):
        assert ran(warm_python, f"import os; os.kill(os.getpid(), {number})").returncode == -number


def test_it_has_the_descriptors_that_it_was_given_under_their_numbers(warm_python: WarmPython) -> None:
    reading, writing = os.pipe()
    command = [str(warm_python.path), "-c", f"import os; os.write({writing}, b'here')"]
    subprocess.run(command, pass_fds=(writing,), check=True)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"here"


def test_killed_it_runs_no_longer(warm_python: WarmPython) -> None:
    with subprocess.Popen([str(warm_python.path), "-c", SLEEPS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_the_end_of_a_lease_ends_its_forks_and_no_other(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "warm_muster", ("json",))
    folders = [short_folder / name for name in ("server", "one", "other")]
    for folder in folders[1:]:
        folder.mkdir()
    with WarmServer.of("warm_muster", folders[0]), WarmPython(folders[1], folders[0]) as stays:
        with WarmPython(folders[2], folders[0]) as ends:
            programs = [str(lease.daemon) for lease in (stays, ends)]
            sleeping = [subprocess.Popen([program, "-c", SLEEPS], stdout=subprocess.PIPE) for program in programs]
            for process in sleeping:
                assert process.stdout is not None
                assert process.stdout.readline()
        assert sleeping[1].wait(60) == -signal.SIGKILL
        assert ran(ends, "print()").returncode == 1, "no lease, no fork"
        assert sleeping[0].poll() is None
        assert ran(stays, "print()").returncode == 0
    for process in sleeping:
        with process:
            process.wait(60)


def test_it_runs_a_script_with_its_arguments_its_own_folder_and_streams_that_keep_nothing_back(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    (tmp_path / "beside_it.py").write_text("WORD = 'found'\n")
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nfrom beside_it import WORD\nprint(__name__, sys.argv[1:], WORD)\nos._exit(0)\n")
    ended = subprocess.run(
        [str(warm_python.path), "-u", str(script), "-x"], capture_output=True, text=True, check=False
    )
    assert ended.stdout == "__main__ ['-x'] found\n", ended.stderr


def test_a_daemon_receives_a_signal_itself(warm_python: WarmPython, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGUSR2, lambda *_: sys.exit(5))\nprint('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([str(warm_python.daemon), str(script)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGUSR2)
        assert process.wait(60) == 5
