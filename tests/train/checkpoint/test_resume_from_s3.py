"""Two ranks that keep their checkpoints in an object store: what a folder promises holds there too."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.storage.bucket import PART_BYTES
from tests.train.marks import TRAINS
from tests.train.object_stores import SECRET, Prefix, serving
from tests.train.test_resume import between
from tests.train.train_case import PROGRAM, ROOT, Listening, Training, until

pytestmark = TRAINS
Steps = dict[int, list[str]]
FOUR, EIGHT, TWELVE = (f"step-{step:08d}/gen-1" for step in (4, 8, 12))


def test_it_goes_on_bit_for_bit_from_the_store(training: Training, undisturbed: list[Steps], prefix: Prefix) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        variables = {**prefix.variables, "MUSTER_TRAIN_SOCKET": str(supervisor.path)}
        training.run("--steps", "8", num_ranks=2, **variables)
        assert [said["step"] for said in supervisor.received("checkpoint", status="verified")] == [4, 8]
        again = training.run(num_ranks=2, **variables)
    assert again.steps == between(undisturbed, 9, 12)
    assert len(supervisor.received("resumed", step=8, generation=EIGHT)) == 2
    assert {f"{EIGHT}/{name}" for name in ("rank-00000.pt", "rank-00001.pt", "MANIFEST.json")} < set(prefix.objects())
    assert not training.checkpoints.exists(), "nothing went to a disk"


def test_what_is_damaged_there_is_refused_and_the_one_before_it_used(
    training: Training, undisturbed: list[Steps], prefix: Prefix
) -> None:
    training.run("--steps", "8", num_ranks=2, **prefix.variables)
    prefix.flip(f"{EIGHT}/rank-00001.pt")
    with Listening(training.checkpoints.parent / "s") as supervisor:
        again = training.run(num_ranks=2, **prefix.variables, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    assert again.steps == between(undisturbed, 5, 12)
    (rejected,) = supervisor.received("checkpoint_rejected")
    assert (rejected["generation"], rejected["why"]) == (EIGHT, "rank-00001.pt differs from what was saved")


def test_a_save_that_was_killed_is_never_listed_and_the_next_attempt_clears_it_away(
    training: Training, undisturbed: list[Steps], prefix: Prefix
) -> None:
    killed = training.start(num_ranks=2, **prefix.variables, MUSTER_TRAIN_FAILPOINT="save.before_commit@2")
    assert -signal.SIGKILL in killed.ended()
    store = prefix.store()
    assert [generation.name for generation in store.list_generations()] == [FOUR]
    assert store.half_written() == [(8, 1)]
    assert training.run(num_ranks=2, **prefix.variables).steps == between(undisturbed, 5, 12)
    assert not [key for key in prefix.objects() if key.startswith(EIGHT)]


def test_an_attempt_that_was_overtaken_commits_nothing_more(training: Training, prefix: Prefix) -> None:
    old = training.start("--every", "200", "--steps", "400", "--sleep", "0.05", num_ranks=2, **prefix.variables)
    until(lambda: bool(old.steps[0]), "first step")
    assert prefix.store().begin(2) == 2
    for rank in old.ranks:
        rank.kill(signal.SIGTERM)
    assert old.ended() == [93, 93]
    assert prefix.store().list_generations() == []


def test_a_store_that_is_not_there_is_stated_by_name_and_no_secret_with_it(training: Training, prefix: Prefix) -> None:
    closed = {**prefix.variables, "MUSTER_CHECKPOINT_STORE": "s3://nobodys-bucket/job"}
    attempt = training.start("--steps", "4", num_ranks=2, **closed)
    assert attempt.ended() == [1, 1]
    for rank in attempt.ranks:
        assert "s3://nobodys-bucket/job/FENCE/" in rank.errors
        assert "NoSuchBucket (HTTP 404)" in rank.errors
        assert SECRET not in rank.errors


def test_a_store_that_goes_away_holds_no_training_up(training: Training, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Listening(tmp_path / "s") as supervisor:
        with serving(tmp_path) as server:
            told = {**server.prefix("job").variables, "MUSTER_TRAIN_SOCKET": str(supervisor.path)}
            told["MUSTER_LAST_SAVE_RETRY_S"] = "0"
            attempt = training.start("--steps", "6", "--after", str(go), num_ranks=2, **told, AWS_MAX_ATTEMPTS="1")
            until(lambda: len(supervisor.received("resumed")) == 2, "start")
        go.touch()
        assert attempt.ended() == [74, 74]
    assert [list(steps) for steps in attempt.steps] == [list(range(1, 7))] * 2
    failed = supervisor.received("checkpoint", status="failed")
    assert {said["step"] for said in failed} >= {4, 6}
    assert all("EndpointConnectionError: 's3://checkpoints/job/step-" in said["why"] for said in failed)
    end = supervisor.received("outcome", exit="failed")[0]
    assert end["message"].startswith("the last checkpoint, of step 6, could not be saved (1 try in 0 s): rank 0: ")


def test_what_a_program_that_ends_without_finish_has_begun_to_save_is_kept_and_read_back(
    prefix: Prefix, tmp_path: Path
) -> None:
    command = [sys.executable, str(PROGRAM), "--leave-at", "4", "--width", "500000"]
    with Listening(tmp_path / "s") as supervisor:
        told = {
            **prefix.variables,
            "MUSTER_TRAIN_SOCKET": str(supervisor.path),
            "MUSTER_TRAIN_FAILPOINT": "save.write~1",
        }
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **told}
        ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stderr
    statuses = [said["status"] for said in supervisor.received("checkpoint", step=4)]
    assert statuses == ["writing", "committed", "verified"], ended.stderr
    (file,) = prefix.store().measured(Generation(4, 1)).files
    assert file.size > 2 * PART_BYTES, "of several parts"


def test_encrypted_checkpoints_need_their_key_and_are_no_worse_for_want_of_it(
    training: Training, undisturbed: list[Steps], prefix: Prefix
) -> None:
    place = training.checkpoints.parent
    place.mkdir(parents=True, exist_ok=True)
    old, new, wrong = ((place / name) for name in ("old", "new", "wrong"))
    old.write_text("11" * 32 + "\n")
    new.write_text("# the new one\n" + "22" * 32 + "\n" + "11" * 32 + "  # until nothing needs it\n")
    wrong.write_text("33" * 32)
    variables = prefix.variables
    training.run("--steps", "8", num_ranks=2, **variables, MUSTER_CHECKPOINT_KEY_FILE=str(old))
    first_id = json.loads(prefix.read(f"{EIGHT}/MANIFEST.json"))["key_id"]
    with Listening(place / "s") as supervisor:
        told = {**variables, "MUSTER_TRAIN_SOCKET": str(supervisor.path)}
        refused = training.start(num_ranks=2, **told, MUSTER_CHECKPOINT_KEY_FILE=str(wrong))
        assert refused.ended() == [1, 1]
        unaware = training.start(num_ranks=2, **told)
        assert unaware.ended() == [1, 1]
        again = training.run(num_ranks=2, **told, MUSTER_CHECKPOINT_KEY_FILE=str(new))
    assert (
        f"MissingKeyError: {EIGHT} is encrypted and cannot be used: rank 0: key {first_id}" in refused.ranks[1].errors
    )
    assert "MUSTER_CHECKPOINT_KEY_FILE names no file of keys" in unaware.ranks[0].errors
    assert supervisor.received("checkpoint_rejected") == supervisor.received("checkpoint_unreadable") == []
    assert again.steps == between(undisturbed, 9, 12)
    (newest,) = [generation for generation in prefix.store().list_generations() if generation.step == 12]
    assert prefix.store().verify(newest).key_id not in {first_id, None}, "verified without a key, saved under the new"
