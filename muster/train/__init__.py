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
codes: 0 done, 17 diverged, 75 stopped with a checkpoint, 76 stopped without one, 93 never start this attempt again.
"""

import ast
import importlib
from pathlib import Path

from muster.train.runtime import importing


def _exports() -> dict[str, str]:
    """Return each public name with its module: ``__init__.pyi`` is the only list, for type checkers and for us."""
    listed = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    imports = [each for each in listed if isinstance(each, ast.ImportFrom)]
    return {alias.name: str(each.module) for each in imports for alias in each.names}


_EXPORTS = _exports()
__all__ = sorted(_EXPORTS)  # noqa: PLE0605  # read from the stub


def __getattr__(name: str) -> object:
    """Import the module of a public name on its first use, so that a program which only reads checkpoints needs no
    torch.
    """
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


importing.begin()
