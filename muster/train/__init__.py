"""The torch runtime inside jobs: about five lines in a user's script, the standard library and torch alone.

    from muster import train

    run = train.start(model, optimizer, checkpoint_every=20)
    for step in run.steps(total=200):
        loss = train_one(run.model, run.sample_indices(len(data), batch_size=8))
        run.report(loss=loss)
    run.finish()

``start`` joins the process group, loads the newest checkpoint that verifies and continues at the exact next step.
``steps`` ends early, on all ranks at one step and with a checkpoint, if the job has to stop. Outside Muster (none of
its variables are set) the same script runs unchanged, from the start. Import this package before slow imports: it then
also handles a stop during them (``importing``).

``environment`` lists what the launcher passes to a rank, ``wire`` the messages between ranks and supervisor. Exit
codes: 0 done, 75 stopped with a checkpoint, 76 stopped without one, 93 never start this attempt again.
"""

import importlib
from typing import TYPE_CHECKING

from muster.train.checkpoint.fences import StaleFenceError
from muster.train.runtime import importing

if TYPE_CHECKING:
    from muster.train.data.dataset_manifest import DatasetError
    from muster.train.data.dataset_paths import dataset_path
    from muster.train.data.datasets import Dataset, dataset
    from muster.train.parallel.meshes import mesh
    from muster.train.parallel.shards import CoverageError
    from muster.train.report.flops import Attention, ModelShape, Recompute, Work, active_params, packed_sequence
    from muster.train.report.learning_rates import TunedFor
    from muster.train.report.peaks import Dtype
    from muster.train.runtime.run import Run
    from muster.train.runtime.starting import start

__all__ = [
    "Attention",
    "CoverageError",
    "Dataset",
    "DatasetError",
    "Dtype",
    "MissingKeyError",
    "ModelShape",
    "Recompute",
    "Run",
    "StaleFenceError",
    "TunedFor",
    "UnfitSurroundingsError",
    "Work",
    "active_params",
    "dataset",
    "dataset_path",
    "mesh",
    "packed_sequence",
    "start",
]


_ROOMS = {
    "Attention": "report.flops",
    "CoverageError": "parallel.shards",
    "Dataset": "data.datasets",
    "DatasetError": "data.dataset_manifest",
    "Dtype": "report.peaks",
    "MissingKeyError": "checkpoint.keys",
    "dataset": "data.datasets",
    "dataset_path": "data.dataset_paths",
    "ModelShape": "report.flops",
    "Recompute": "report.flops",
    "Run": "runtime.run",
    "TunedFor": "report.learning_rates",
    "UnfitSurroundingsError": "checkpoint.config",
    "Work": "report.flops",
    "active_params": "report.flops",
    "mesh": "parallel.meshes",
    "packed_sequence": "report.flops",
    "start": "runtime.starting",
}


def __getattr__(name: str) -> object:
    """Import the module of a public name on its first use, so that a program which only reads checkpoints needs no
    torch.
    """
    if name in _ROOMS:
        return getattr(importlib.import_module(f"muster.train.{_ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


importing.begin()
