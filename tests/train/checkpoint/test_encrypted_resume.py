"""An encrypted checkpoint that another program has put together again: its checksums hold, and it does not open."""

import dataclasses

from muster.train.checkpoint import generations, manifest
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import MANIFEST
from tests.train.marks import TRAINS
from tests.train.train_case import Listening, Training

pytestmark = TRAINS


def test_a_file_put_in_anothers_place_is_refused_and_the_one_before_it_used(training: Training) -> None:
    place = training.checkpoints.parent
    place.mkdir(parents=True, exist_ok=True)
    keys = place / "keys"
    keys.write_text("11" * 32)
    older, newer = Generation(4, 1), Generation(8, 1)
    whole = training.run("--steps", "12").steps[0]
    training.checkpoints = place / "encrypted"
    training.run("--steps", "8", MUSTER_FENCE="1", MUSTER_CHECKPOINT_KEY_FILE=str(keys))
    put = training.checkpoints / newer.name / "rank-00000.pt"
    put.write_bytes((training.checkpoints / older.name / put.name).read_bytes())
    about = generations.read_manifest(training.checkpoints, newer)
    files = generations.read_manifest(training.checkpoints, older).files
    (training.checkpoints / newer.name / MANIFEST).write_bytes(manifest.dump(dataclasses.replace(about, files=files)))
    assert generations.verify(training.checkpoints, newer).key_id == about.key_id, "by its checksums it is whole"
    with Listening(place / "s") as supervisor:
        again = training.run(MUSTER_TRAIN_SOCKET=str(supervisor.path), MUSTER_CHECKPOINT_KEY_FILE=str(keys))
    assert again.steps[0] == {step: whole[step] for step in range(5, 13)}
    (rejected,) = supervisor.received("checkpoint_rejected")
    assert rejected["generation"] == newer.name
    assert rejected["why"] == "rank-00000.pt cannot be decrypted: frame 0 of 1 is not what was encrypted here"
