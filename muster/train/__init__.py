"""The torch runtime inside jobs: about five lines in a user's script, the standard library and torch alone.

    from muster import train

    run = train.start(model, optimizer, checkpoint_every=20)
    for step in run.steps(total=200):
        loss = train_one(run.model, run.sample_indices(len(data), batch_size=8))
        run.report(loss=loss)
    run.finish()

``start`` joins the process group, loads the newest checkpoint that verifies and goes on at the exact next step.
``steps`` ends early, on all ranks at one step and with a checkpoint, when the job has to stop. Without Muster around
it (no variables of its own set) the same script runs as it is, from the start.
"""

from muster.train.run import Run, start
from muster.train.surroundings import StaleFenceError

__all__ = ["Run", "StaleFenceError", "start"]
