"""Generations in an object store, asked of a real server: complete or not there, and only the newest attempt's."""

import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from muster.train.checkpoint import retention
from muster.train.checkpoint.fences import StaleFenceError
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import MANIFEST, UnusableError
from muster.train.checkpoint.storage.bucket import Bucket
from muster.train.checkpoint.storage.object_store import ObjectStore
from muster.train.checkpoint.storage.places import S3Place
from muster.train.checkpoint.storage.uploads import Upload
from muster.train.runtime.durable_files import HashingFile
from tests.train.checkpoint.test_generations import about
from tests.train.object_stores import BUCKET, SECRET, Prefix, environment_of

MIB = 1 << 20


def part(content: bytes, *, at_once: int = 700_001) -> Callable[[HashingFile], None]:
    def dump(file: HashingFile) -> None:
        for begin in range(0, len(content), at_once):
            file.write(content[begin : begin + at_once])

    return dump


def commit(store: ObjectStore, step: int, fence: int = 1) -> Generation:
    generation = Generation(step, fence)
    store.prepare(generation)
    files = [store.write_part(generation, rank, part(b"weights" * 100 + bytes([rank]))) for rank in range(2)]
    store.commit(about(step, fence, files))
    return generation


def test_a_generation_is_there_once_its_manifest_is(prefix: Prefix) -> None:
    store = prefix.store()
    generation = commit(store, 40, 7)
    half = Generation(50, 7)
    store.write_part(half, 0, part(b"half"))
    assert store.list_generations() == [generation]
    assert store.half_written() == [(50, 7)]
    found = store.verify(generation)
    assert (found.step, found.fence, found.world_size) == (40, 7, 2)
    assert store.measured(generation) == found
    assert [len(store.verified_part(found, file)) for file in found.files] == [701, 701]


def test_a_file_of_many_parts_comes_back_as_it_went(prefix: Prefix) -> None:
    store = prefix.store(part_bytes=5 * MIB)
    content = bytes(range(251)) * 67_000
    generation = Generation(1, 1)
    record = store.write_part(generation, 0, part(content))
    store.commit(about(1, 1, [record]))
    assert record.size == len(content) > 3 * 5 * MIB
    assert store.verified_part(store.verify(generation), record) == content


def test_a_file_that_could_not_be_written_leaves_nothing_behind(prefix: Prefix) -> None:
    store = prefix.store(part_bytes=5 * MIB)

    def dump(file: HashingFile) -> None:
        file.write(bytes(12 * MIB))
        raise RuntimeError("the program's own fault")

    with pytest.raises(RuntimeError, match="own fault"):
        store.write_part(Generation(1, 1), 0, dump)
    assert prefix.objects() == []
    assert prefix.bucket().unfinished_uploads() == []


LEAVES = """
import atexit, os, sys, threading
from muster.train.checkpoint.storage.bucket import Bucket
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.storage.object_store import ObjectStore
from muster.train.checkpoint.storage.places import S3Place
from muster.train.checkpoint.background_save import Saving

store = ObjectStore(Bucket(S3Place.of(sys.argv[1]), part_bytes=5 << 20))
has_ended = threading.Event()

def work():
    has_ended.wait()
    record = store.write_part(Generation(1, 1), 0, lambda file: file.write(os.urandom(22 << 20)))
    read = store._bucket.get("step-00000001/gen-1/" + record.name)
    print(record.size, len(read), flush=True)
    return True

saving = Saving(1, work)

def wait():
    has_ended.set()
    saving.result()

atexit.register(wait)
"""


def test_a_program_that_ends_without_a_word_still_sends_and_reads_its_last_parts(prefix: Prefix) -> None:
    command = [sys.executable, "-c", LEAVES, str(prefix.place)]
    environment = {**os.environ, **prefix.server.environment}
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=120)
    assert ended.stdout == f"{22 * MIB} {22 * MIB}\n", ended.stderr
    assert prefix.objects() == ["step-00000001/gen-1/rank-00000.pt"]


class Stub:
    """A bucket that takes parts and keeps none of them."""

    part_bytes = MIB

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def ask(self, _what: str, _key: str, call: str, **requested: Any) -> dict[str, str]:
        if call == "upload_part":
            self.sizes.append(len(requested["Body"]))
        return {"UploadId": "1", "ETag": "tag"}


def test_a_large_write_goes_up_without_another_copy_of_all_of_it() -> None:
    bucket = Stub()
    upload = Upload(cast("Bucket", bucket), "key")
    content = memoryview(bytearray(48 * MIB + 5))
    tracemalloc.start()
    try:
        upload.write(content)
        upload.finish()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sorted(bucket.sizes) == [5, *[MIB] * 48]
    assert most < 12 * MIB


def test_what_fills_its_parts_has_no_empty_one_after_them() -> None:
    bucket = Stub()
    upload = Upload(cast("Bucket", bucket), "key")
    for _ in range(4):
        assert upload.write(bytes(MIB // 2)) == MIB // 2
    upload.finish()
    assert bucket.sizes == [MIB, MIB]


def test_a_commit_requests_all_ranks_files_at_once(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    store = prefix.store()
    generation = Generation(1, 1)
    files = [store.write_part(generation, rank, part(b"weights")) for rank in range(5)]
    calls: list[str] = []
    ask = Bucket.ask

    def counted(bucket: Bucket, what: str, key: str, call: str, **requested: Any) -> Any:
        calls.append(call)
        return ask(bucket, what, key, call, **requested)

    monkeypatch.setattr(Bucket, "ask", counted)
    store.commit(about(1, 1, files))
    assert (calls.count("head_object"), calls.count("list_objects_v2")) == (0, 3), "the fence twice"
    calls.clear()
    store.measured(generation)
    assert (calls.count("head_object"), calls.count("list_objects_v2")) == (1, 1), "the manifest's own size"


def test_a_rank_whose_file_is_missing_or_short_lets_nothing_be_committed(prefix: Prefix) -> None:
    store = prefix.store()
    files = [store.write_part(Generation(1, 1), rank, part(b"weights")) for rank in range(2)]
    prefix.write("step-00000001/gen-1/rank-00001.pt", b"weight")
    with pytest.raises(OSError, match="has another size than was written"):
        store.commit(about(1, 1, files))
    prefix.bucket().delete(["step-00000001/gen-1/rank-00001.pt"])
    with pytest.raises(FileNotFoundError, match=r"rank-00001\.pt is not there"):
        store.commit(about(1, 1, files))
    assert store.list_generations() == []


def test_unfinished_uploads_are_ordered_to_the_last_page(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = prefix.bucket()
    begins = f"{prefix.place.prefix}/"
    pages: dict[tuple[Any, Any], dict[str, Any]] = {
        (None, None): {
            "Uploads": [{"Key": f"{begins}a", "UploadId": "1"}],
            "IsTruncated": True,
            "NextKeyMarker": f"{begins}a",
            "NextUploadIdMarker": "1",
        },
        (f"{begins}a", "1"): {"Uploads": [{"Key": f"{begins}b", "UploadId": "2"}], "IsTruncated": False},
    }
    monkeypatch.setattr(bucket, "ask", lambda *_, **asked: pages[asked.get("KeyMarker"), asked.get("UploadIdMarker")])
    assert bucket.unfinished_uploads() == [("a", "1"), ("b", "2")]


@pytest.mark.parametrize("name", ["rank-00000.pt", "rank-00001.pt", MANIFEST])
def test_one_byte_or_one_file_less_is_damage(prefix: Prefix, name: str) -> None:
    store = prefix.store()
    generation = commit(store, 1)
    prefix.flip(f"{generation.name}/{name}", 50)
    with pytest.raises(UnusableError) as changed:
        store.verify(generation)
    prefix.bucket().delete([f"{generation.name}/{name}"])
    with pytest.raises(UnusableError) as missing:
        store.verify(generation)
    assert changed.value.is_damage
    assert missing.value.is_damage


@pytest.mark.parametrize("check", ["read_manifest", "measured", "verify"])
def test_a_store_that_does_not_answer_states_nothing_of_what_lies_there(prefix: Prefix, check: str) -> None:
    commit(prefix.store(), 1)
    elsewhere = {**prefix.server.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    with environment_of(elsewhere):
        store = ObjectStore(Bucket(prefix.place))
    with pytest.raises(OSError, match="EndpointConnectionError"):
        getattr(store, check)(Generation(1, 1))


def test_the_record_of_skipped_samples_is_the_newest_attempts_up_to_a_fence(prefix: Prefix) -> None:
    store = prefix.store()
    assert store.read_skipped(9) is None
    store.write_skipped(3, b"of attempt 3")
    store.write_skipped(12, b"of attempt 12")
    assert [store.read_skipped(fence) for fence in (2, 3, 11, 12)] == [
        None,
        b"of attempt 3",
        b"of attempt 3",
        b"of attempt 12",
    ]
    assert store.list_generations() == []


def test_a_name_that_is_taken_is_never_overwritten(prefix: Prefix) -> None:
    store = prefix.store()
    generation = commit(store, 1)
    was = prefix.read(f"{generation.name}/{MANIFEST}")
    with pytest.raises(FileExistsError):
        store.prepare(generation)
    record = store.write_part(generation, 0, part(b"other"))
    with pytest.raises(FileExistsError):
        store.commit(about(1, 1, [record]))
    store.abandon(generation)
    assert prefix.read(f"{generation.name}/{MANIFEST}") == was


def test_a_manifest_whose_answer_was_lost_is_known_again(prefix: Prefix) -> None:
    store = prefix.store()
    generation = Generation(1, 1)
    record = store.write_part(generation, 0, part(b"weights"))
    assert store.commit(about(1, 1, [record])) == store.commit(about(1, 1, [record]))


def test_what_has_an_older_fence_may_neither_begin_nor_commit(prefix: Prefix) -> None:
    store = prefix.store()
    assert store.highest_fence() == 0
    assert store.begin(6) == store.begin(6) == 6
    record = store.write_part(Generation(1, 6), 0, part(b"weights"))
    assert store.begin(None) == 7, "a rank without a given fence takes the next"
    with pytest.raises(StaleFenceError, match="fence 6 is older than 7"):
        store.begin(6)
    with pytest.raises(StaleFenceError, match="fence 7 has begun, 6 may commit nothing"):
        store.commit(about(1, 6, [record]))
    assert store.list_generations() == []


def test_one_overtaken_between_its_check_and_its_manifest_takes_it_back(
    prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = prefix.store(), prefix.store()
    store.begin(1)
    record = store.write_part(Generation(1, 1), 0, part(b"weights"))
    put = store._put_manifest

    def overtaken(generation: Generation, content: bytes) -> None:
        put(generation, content)
        other.begin(2)

    monkeypatch.setattr(store, "_put_manifest", overtaken)
    with pytest.raises(StaleFenceError):
        store.commit(about(1, 1, [record]))
    assert other.list_generations() == []


def test_what_begins_clears_away_what_older_attempts_left_half_written(prefix: Prefix) -> None:
    store, bucket = prefix.store(), prefix.bucket()
    whole = commit(store, 1, fence=1)
    store.write_part(Generation(2, 1), 0, part(b"half"))
    store.write_part(Generation(3, 5), 0, part(b"in the making"))
    bucket.ask("begin upload", "step-00000002/gen-1/rank-00001.pt", "create_multipart_upload")
    assert len(bucket.unfinished_uploads()) == 1
    store.begin(5)
    assert (store.list_generations(), store.half_written()) == ([whole], [(3, 5)])
    assert bucket.unfinished_uploads() == []


def test_marks_ages_and_removal(prefix: Prefix) -> None:
    store = prefix.store()
    old, new = commit(store, 1), commit(store, 2)
    store.mark_good(old)
    assert store.good_ones() == {old.name}
    store.pin(new, retention.PINNED)
    store.pin(old, retention.PINNED_BY_CONTROL_PLANE)
    assert store.pinned_ones(retention.PINNED) == {new.name}
    assert store.pinned_ones(retention.PINNED_BY_CONTROL_PLANE) == {old.name}
    store.unpin(new, retention.PINNED)
    store.unpin(new, retention.PINNED)
    assert store.pinned_ones(retention.PINNED) == frozenset()
    assert store.aged_ones([old, new], 60.0, 0.0) == frozenset()
    assert store.aged_ones([old, new], 60.0, 9e12) == {old.name, new.name}
    assert store.aged_ones([Generation(9, 9)], 60.0, 9e12) == frozenset(), "a removed generation has no age"
    store.remove([old])
    assert store.list_generations() == [new]
    assert not [key for key in prefix.objects() if key.startswith(old.name)]
    assert retention.GOOD not in prefix.read(f"{new.name}/{MANIFEST}").decode()


class Throttling(BaseHTTPRequestHandler):
    """Refuses the first three requests as busy, and then says that there is nothing."""

    refused: list[str]

    def do_GET(self) -> None:
        if len(self.refused) < 3:
            self.refused.append(self.path)
            self._answer(503, b"<Error><Code>SlowDown</Code><Message>x</Message></Error>")
        else:
            self._answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def throttled() -> Iterator[tuple[str, list[str]]]:
    refused: list[str] = []
    handler = type("Handler", (Throttling,), {"refused": refused})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", refused
        server.shutdown()
        thread.join()


def test_a_busy_store_is_queried_again_and_after_a_while_no_more(
    prefix: Prefix, throttled: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, refused = throttled
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    environment = {**prefix.server.environment, "AWS_ENDPOINT_URL": url}
    with environment_of(environment):
        assert ObjectStore(Bucket(prefix.place)).highest_fence() == 0
    assert len(refused) == 3
    refused.clear()
    with environment_of({**environment, "AWS_MAX_ATTEMPTS": "2"}), pytest.raises(OSError, match="SlowDown") as found:
        ObjectStore(Bucket(prefix.place)).highest_fence()
    assert (
        str(found.value)
        == f"[Errno 5] list was refused: SlowDown (HTTP 503): 's3://{BUCKET}/{prefix.place.prefix}/FENCE/'"
    )
    assert SECRET not in str(found.value)


@pytest.mark.parametrize(
    ("variables", "region"),
    [
        ({"AWS_REGION": "eu-1", "AWS_DEFAULT_REGION": "eu-2"}, "eu-1"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-2"}, "eu-2"),
    ],
)
def test_the_region_is_the_environments(prefix: Prefix, variables: dict[str, str], region: str) -> None:
    with environment_of({**prefix.server.environment, **variables}):
        assert Bucket(prefix.place)._client.meta.region_name == region


def test_credentials_come_from_the_file_that_is_named(prefix: Prefix, tmp_path: Any) -> None:
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = mine\naws_secret_access_key = hidden\n")
    bucket = prefix.bucket(credentials_file=path)
    found = bucket._client._request_signer._credentials
    assert (found.access_key, found.secret_key) == ("mine", "hidden")
    path.write_text("[another]\naws_access_key_id = mine\naws_secret_access_key = hidden\n")
    with pytest.raises(OSError, match=r"needs a \[default\] with aws_access_key_id") as refused:
        prefix.bucket(credentials_file=path)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "prefix_found"),
    [("s3://bucket-1", ""), ("s3://bucket-1/", ""), ("s3://bucket-1/a/b_c", "a/b_c"), ("s3://bucket-1/a/", "a")],
)
def test_a_place_is_a_bucket_and_a_prefix(text: str, prefix_found: str) -> None:
    assert S3Place.of(text) == S3Place("bucket-1", prefix_found)


@pytest.mark.parametrize(
    "text",
    [
        "bucket",
        "s3://",
        "s3://Bucket/a",
        "s3://bucket//a",
        "s3://bucket/a/../b",
        "s3://bucket/a b",
        "s3://u:p@bucket/a",
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no place in an object store: it must be s3://BUCKET/PREFIX"):
        S3Place.of(text)
