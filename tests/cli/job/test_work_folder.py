"""``muster job submit`` with its work folder, by real processes: an API, a bucket, and the command."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from muster.cli.framework.exits import Exit
from muster.client.transport import Problem
from muster.content.manifest import CHUNK_BYTES, decode
from tests.cli.command import Command
from tests.cli.job.served_folders import Served, newest, submit

pytestmark = pytest.mark.timeout(400)


def test_the_folder_is_stored_whole_and_its_job_names_it(muster: Command, served: Served) -> None:
    done = submit(muster, served, "train.py", "--steps", "2")
    assert done.returncode == Exit.OK, done.stderr
    program = newest(served)
    assert (program["script"], program["working_dir"], program["args"]) == ("train.py", None, ["--steps", "2"])
    assert f"bundle {str(program['bundle'])[:12]} of 3 files" in done.stderr
    tenant = f"tenants/{served.fleet.tenant_id}"
    manifest = decode(served.bucket.objects[f"{tenant}/manifests/{program['bundle']}"])
    assert [entry.path for entry in manifest.entries] == [".musterignore", "package/model.py", "train.py"]
    for entry in manifest.entries:
        content = b"".join(served.bucket.objects[f"{tenant}/chunks/{part[:2]}/{part}"] for part in entry.parts)
        assert content == (muster.folder / entry.path).read_bytes()


def test_an_unchanged_folder_again_sends_nothing(muster: Command, served: Served) -> None:
    submit(muster, served, "train.py")
    num_puts = served.bucket.num_puts
    again = submit(muster, served, "train.py")
    assert (again.returncode, again.stderr) == (Exit.OK, "")
    assert served.bucket.num_puts == num_puts
    (muster.folder / "train.py").write_text("print('changed')")
    assert submit(muster, served, "train.py").returncode == Exit.OK
    assert served.bucket.num_puts == num_puts + 2, "the changed file, and the new manifest"


def test_a_large_file_goes_in_chunks_and_equal_ones_once(muster: Command, served: Served) -> None:
    content = os.urandom(CHUNK_BYTES) * 2 + os.urandom(1000)
    (muster.folder / "weights").write_bytes(content)
    (muster.folder / "weights again").write_bytes(content)
    assert submit(muster, served, "train.py").returncode == Exit.OK
    assert served.bucket.num_puts == 3 + 2 + 1, "three small files, two different chunks, the manifest"


@pytest.mark.parametrize("number", [1, 3, 6])
def test_an_upload_that_is_killed_continues_where_it_was(muster: Command, served: Served, number: int) -> None:
    for name in range(8):
        (muster.folder / f"file{name}").write_bytes(os.urandom(100_000))
    reached, continuing = threading.Event(), threading.Event()

    def stand_still(at: int) -> None:
        if at >= number:
            reached.set()
            assert continuing.wait(100)

    served.bucket.on_put = stand_still
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(muster.folder.parent),
        "MUSTER_API_URL": served.url,
        "MUSTER_API_KEY_FILE": str(muster.key_file),
    }
    words = [sys.executable, "-m", "muster", "job", "submit", "train.py"]
    process = subprocess.Popen(words, cwd=muster.folder, env=environment, stderr=subprocess.PIPE)
    assert reached.wait(100)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    continuing.set()
    served.bucket.on_put = lambda _number: None
    done = submit(muster, served, "train.py")
    assert done.returncode == Exit.OK, done.stderr
    tenant = f"tenants/{served.fleet.tenant_id}"
    manifest = decode(served.bucket.objects[f"{tenant}/manifests/{newest(served)['bundle']}"])
    assert all(f"{tenant}/chunks/{part[:2]}/{part}" in served.bucket.objects for part, _ in manifest.chunks())
    with served.client() as client:
        assert {one["state"] for one in client.bundles()} == {"complete"}


def test_two_submissions_of_one_folder_at_once_are_two_jobs_of_one_bundle(muster: Command, served: Served) -> None:
    (muster.folder / "weights").write_bytes(os.urandom(3 * CHUNK_BYTES))
    with served.client() as client:
        before = {one["digest"] for one in client.bundles()}
    done: list[subprocess.CompletedProcess[str]] = []
    both = [threading.Thread(target=lambda: done.append(submit(muster, served, "train.py"))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert [one.returncode for one in done] == [Exit.OK, Exit.OK], [one.stderr for one in done]
    with served.client() as client:
        new = [one for one in client.bundles() if one["digest"] not in before]
    assert [(one["state"], one["num_live_jobs"]) for one in new] == [("complete", 2)]


def test_a_store_that_fails_for_a_moment_is_tried_again(muster: Command, served: Served) -> None:
    served.bucket.on_put = lambda number: (503, "SlowDown") if number <= 2 else None
    done = submit(muster, served, "train.py")
    assert done.returncode == Exit.OK, done.stderr
    assert served.bucket.num_puts == 6


def test_a_full_store_is_named_and_what_was_uploaded_stays(muster: Command, served: Served) -> None:
    served.bucket.on_put = lambda number: (507, "InsufficientStorage") if number > 1 else None
    refused = submit(muster, served, "train.py")
    assert refused.returncode == Exit.SERVER_FAULT
    assert "the content store answers 507" in refused.stderr
    assert "the same command continues" in refused.stderr
    served.bucket.on_put = lambda _number: None
    assert submit(muster, served, "train.py").returncode == Exit.OK


def test_an_expired_address_is_replaced(muster: Command, served: Served) -> None:
    served.bucket.on_put = lambda number: (403, "AccessDenied Request has expired") if number <= 3 else None
    done = submit(muster, served, "train.py")
    assert done.returncode == Exit.OK, done.stderr
    served.bucket.on_put = lambda _number: (403, "AccessDenied Request has expired")
    (muster.folder / "train.py").write_text("print('anew')")
    refused = submit(muster, served, "train.py")
    assert refused.returncode == Exit.SERVER_FAULT
    said = " ".join(refused.stderr.split())
    assert "the content store answers 403: AccessDenied Request has expired" in said
    assert "compare the clocks of both, and the key" in said


@pytest.mark.parametrize("code", ["AccessDenied", "RequestTimeTooSkewed", "SignatureDoesNotMatch"])
def test_an_address_that_is_refused_on_any_try_is_replaced(muster: Command, served: Served, code: str) -> None:
    """The first four objects are tried again, by which time their addresses are refused."""
    answers = [(503, "SlowDown")] * 4 + [(403, code)] * 4
    served.bucket.on_put = lambda number: answers[number - 1] if number <= len(answers) else None
    done = submit(muster, served, "train.py")
    assert done.returncode == Exit.OK, done.stderr
    assert served.bucket.num_puts > len(answers)


def test_a_quota_of_the_store_is_named_at_once(muster: Command, served: Served) -> None:
    """Ceph answers 403 to it too."""
    served.bucket.on_put = lambda _number: (403, "QuotaExceeded")
    refused = submit(muster, served, "train.py")
    assert refused.returncode == Exit.SERVER_FAULT
    assert "QuotaExceeded" in refused.stderr
    assert served.bucket.num_puts <= 4, "each of the connections has one try"


def test_a_file_that_changes_while_it_is_sent_is_named(muster: Command, served: Served) -> None:
    (muster.folder / "weights").write_bytes(os.urandom(CHUNK_BYTES))

    def write(_number: int) -> None:
        (muster.folder / "weights").write_bytes(os.urandom(CHUNK_BYTES))

    served.bucket.on_put = write
    refused = submit(muster, served, "train.py")
    served.bucket.on_put = lambda _number: None
    if refused.returncode != Exit.OK:
        assert refused.returncode == Exit.INVALID
        assert "weights: it changes while it is read" in " ".join(refused.stderr.split())
    assert submit(muster, served, "train.py").returncode == Exit.OK


def test_a_job_of_a_bundle_that_was_just_deleted_gets_it_again(muster: Command, served: Served) -> None:
    submit(muster, served, "train.py")
    digest = str(newest(served)["bundle"])
    with served.client() as client:
        with pytest.raises(Problem, match="is used by jobs"):
            client.delete_bundle(digest)
        for job in client.jobs(state=["QUEUED"]):
            client.cancel_job(job["id"])
        shown = muster.run("bundle", "delete", digest[:12], url=served.url)
        assert shown.returncode == Exit.OK, shown.stderr
    done = submit(muster, served, "train.py")
    assert done.returncode == Exit.OK, done.stderr
    assert newest(served)["bundle"] == digest


def test_a_plan_states_sizes_and_uploads_nothing(muster: Command, served: Served) -> None:
    for words in (
        ("job", "submit", "--dry-run", "train.py"),
        ("job", "plan", "--bundle", "."),
        ("job", "plan", "train.py", "--steps", "4"),
    ):
        shown = muster.run(*words, url=served.url, HOME=str(muster.folder.parent))
        assert shown.returncode == Exit.OK, shown.stderr
        assert "of 3 files" in shown.stdout
        assert "in 4 chunks would be uploaded" in " ".join(shown.stdout.split())
    assert served.bucket.num_puts == 0
    submit(muster, served, "train.py")
    assert "which the store has" in muster.run("job", "plan", "--bundle", ".", url=served.url).stdout


def test_folders_that_cannot_be_taken_are_refused_before_they_are_read(muster: Command, served: Served) -> None:
    (muster.folder / "large").touch()
    os.truncate(muster.folder / "large", 50_000_000_000)
    refused = submit(muster, served, "train.py")
    assert refused.returncode == Exit.INVALID
    assert "The largest files: large (50 GB)" in " ".join(refused.stderr.split())
    (muster.folder / "large").unlink()
    os.mkfifo(muster.folder / "pipe")
    assert "pipe: it is a socket, a pipe or a device" in " ".join(submit(muster, served, "train.py").stderr.split())
    (muster.folder / "pipe").unlink()
    (muster.folder / "out").symlink_to("/etc/passwd")
    assert "out → /etc/passwd" in submit(muster, served, "train.py").stderr
    assert served.bucket.num_puts == 0


def test_which_folder_a_job_gets(muster: Command, served: Served) -> None:
    package = muster.folder / "package"
    assert submit(muster, served, "--bundle", str(package), "package/model.py").returncode == Exit.OK
    assert (newest(served)["script"], newest(served)["working_dir"]) == ("model.py", str(muster.folder))
    assert submit(muster, served, "--command", "--", "sh", "train.py").returncode == Exit.OK
    assert newest(served)["argv"] == ["sh", "train.py"]
    assert newest(served)["bundle"] is not None
    for words in (["--no-bundle", "train.py"], [str(muster.folder / "train.py")], ["--command", "--", "true"]):
        assert submit(muster, served, *words).returncode == Exit.OK
        assert newest(served).get("bundle") is None
    outside = submit(muster, served, "--bundle", str(package), "train.py")
    assert outside.returncode == Exit.USAGE
    assert "is not in the work folder" in " ".join(outside.stderr.split())
    assert submit(muster, served, "--bundle", "nowhere", "train.py").returncode == Exit.USAGE
    assert submit(muster, served, "--bundle", ".", "--no-bundle", "train.py").returncode == Exit.USAGE


def test_bundles_are_listed_and_shown(muster: Command, served: Served) -> None:
    submit(muster, served, "train.py")
    digest = str(newest(served)["bundle"])
    listed = muster.run("bundle", "list", url=served.url)
    assert digest[:12] in listed.stdout
    assert "are in use" in listed.stdout
    assert "1 jobs that have not ended use it" in muster.run("bundle", "show", digest[:12], url=served.url).stdout
    assert muster.run("bundle", "show", "000000", url=served.url).returncode == Exit.NOT_FOUND
    assert muster.run("bundle", "delete", digest, url=served.url).returncode == Exit.CONFLICT


def test_an_unchanged_folder_again_is_queued_within_a_second(cold_muster: Command, served: Served) -> None:
    """The whole command in a new interpreter; the bar itself is judged by ``make bench-roundtrip``."""
    for number in range(500):
        (cold_muster.folder / "package" / f"module{number}.py").write_text(f"# {number}")
    os.utime(cold_muster.folder / "train.py")
    assert submit(cold_muster, served, "train.py").returncode == Exit.OK
    began = time.monotonic()
    assert submit(cold_muster, served, "train.py").returncode == Exit.OK
    assert time.monotonic() - began < 20, "far above the bar: this machine may do ten things at once"
