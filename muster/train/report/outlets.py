"""A training's figures in common tools: TensorBoard, MLflow, Weights & Biases.

``start(outlets=["tensorboard"])``, or ``MUSTER_OUTLETS=tensorboard,mlflow`` around the program; each needs its library
in the job's environment. The first rank's messages go there as well: loss and seconds of each step, and its pace. A
thread writes them, so that training waits for none. Figures that it cannot keep up with are dropped and counted, and a
fault is reported once.

| outlet | place |
|---|---|
| ``tensorboard`` | event files in ``outlets/tensorboard`` of the checkpoint folder, else of the working folder |
| ``mlflow`` | ``MLFLOW_TRACKING_URI``; one run a job, tagged ``muster.job_id``, continues after a restart |
| ``wandb`` | by wandb's own variables; one run a job, continues after a restart |
"""

from __future__ import annotations

import contextlib
import importlib
import math
import queue
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from muster.train.runtime.environment import Environment

MOST_WAITING = 4096
_CLOSING_S = 3.0
_LONGEST_PARAMETER = 500
_MOST_PARAMETERS = 100
_JOB_TAG = "muster.job_id"
_STEP = {"loss": "train/loss", "step_s": "train/step_s"}
_RATE_NAMES = (
    "tokens_per_s",
    "grad_norm",
    "memory_mib",
    "mfu",
    "hfu",
    "samples_per_step",
    "tokens_per_step",
    "padding",
)


class Outlet(Protocol):
    """A tool that receives figures, used by one thread alone. An exception ends this outlet and nothing else."""

    def write(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def require_outlets(names: Sequence[str]) -> tuple[str, ...]:
    """Return each name once. Raises ValueError for a name that is not known."""
    names = [names] if isinstance(names, str) else names
    for name in names:
        if name not in _MAKERS:
            raise ValueError(f"there is no outlet {name!r}: known are {', '.join(_MAKERS)}")
    return tuple(dict.fromkeys(names))


class Outlets:
    """Receivers of the first rank's messages. ``warn`` gets a code and a text for an outlet that fails."""

    def __init__(
        self,
        names: Sequence[str],
        around: Environment,
        config: Mapping[str, Any] | None,
        warn: Callable[[str, str], None],
    ) -> None:
        self.num_dropped = 0
        self._around = around
        self._config = config or {}
        self._warn = warn
        self._names = names
        self._waiting: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(MOST_WAITING)
        self._open: dict[str, Outlet] = {}
        self._thread = threading.Thread(target=self._work, name="muster-outlets", daemon=True)
        self._thread.start()

    def receive(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Queue a message and return at once; a message that finds the queue full is dropped and counted."""
        if kind not in {"resumed", "step", "pace"}:
            return
        try:
            self._waiting.put_nowait((kind, dict(fields)))
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Write the queued figures for some seconds; then training ends without the rest."""
        until = time.monotonic() + _CLOSING_S
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_CLOSING_S)
        self._thread.join(max(until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            self.num_dropped += self._waiting.qsize()
        if self.num_dropped:
            sys.stderr.write(f"muster.train: {self.num_dropped:,} figures did not reach {', '.join(self._names)}\n")

    def _work(self) -> None:
        while (said := self._waiting.get()) is not None:
            kind, fields = said
            if kind == "resumed":
                self._begin(int(fields["step"]))
                continue
            figures = _figures(kind, fields)
            for name in tuple(self._open):
                self._try(name, lambda outlet: outlet.write(int(fields["step"]), figures))  # noqa: B023  # called now
        for name in tuple(self._open):
            self._try(name, lambda outlet: outlet.close())

    def _begin(self, step: int) -> None:
        for name in self._names:
            try:
                self._open[name] = _MAKERS[name](self._around, self._config, step)
            except ImportError as fault:
                self._fail(name, f"its library is not in the job's environment: {fault}")
            except Exception as fault:  # noqa: BLE001  # another's library, which may raise anything
                self._fail(name, f"{type(fault).__name__}: {fault}")

    def _try(self, name: str, call: Callable[[Outlet], None]) -> None:
        try:
            call(self._open[name])
        except Exception as fault:  # noqa: BLE001  # another's library, which may raise anything
            del self._open[name]
            self._fail(name, f"{type(fault).__name__}: {fault}")

    def _fail(self, name: str, why: str) -> None:
        words = f"no figures go to {name} any more: {why}"
        sys.stderr.write(f"muster.train: {words}\n")
        self._warn(f"outlet_{name}", words)


def _figures(kind: str, fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the names of the tools' charts with their values; a null or a number that is not finite is left out."""
    if kind == "step":
        named = {name: fields.get(field) for field, name in _STEP.items()}
    else:
        named = {f"train/{name}": fields.get(name) for name in _RATE_NAMES}
        named |= {
            f"time/{name}": value for name, value in fields.items() if name.endswith("_s") and "_per_" not in name
        }
    return {
        name: float(value) for name, value in named.items() if isinstance(value, (int, float)) and math.isfinite(value)
    }


class _TensorBoard:
    """Event files of TensorBoard: steps that are trained again after a resume replace the earlier ones."""

    def __init__(self, around: Environment, config: Mapping[str, Any], step: int) -> None:
        library = importlib.import_module("torch.utils.tensorboard")
        self._writer: Any = library.SummaryWriter(str(_folder(around) / "tensorboard"), purge_step=step + 1)
        if config and step == 0:
            lines = [f"    {name}: {value}" for name, value in sorted(config.items())]
            self._writer.add_text("config", "\n".join(lines), 0)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Mlflow:
    def __init__(self, around: Environment, config: Mapping[str, Any], step: int) -> None:
        self._library: Any = importlib.import_module("mlflow")
        kept = _folder(around) / "mlflow-run"
        run_id = self._begun(around, kept) if step > 0 else None
        if run_id is not None:
            self._library.start_run(run_id=run_id)
        else:
            tags = {_JOB_TAG: around.job_id} if around.job_id else None
            run = self._library.start_run(run_name=around.job_id or None, tags=tags)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(run.info.run_id, encoding="ascii")
            parameters = {name: str(value)[:_LONGEST_PARAMETER] for name, value in sorted(config.items())}
            self._library.log_params(dict(tuple(parameters.items())[:_MOST_PARAMETERS]))

    def _begun(self, around: Environment, kept: Path) -> str | None:
        """Return the job's run, from a file if all the job's hosts share the folder, else by its tag; None if there is
        none.
        """
        is_shared = around.checkpoint_store is None or not around.job_id
        if is_shared and kept.exists():
            return kept.read_text(encoding="ascii").strip()
        if not around.job_id:
            return None
        chosen = f"tags.`{_JOB_TAG}` = '{around.job_id}'"
        found = self._library.search_runs(filter_string=chosen, max_results=1, output_format="list")
        return str(found[0].info.run_id) if found else None

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self._library.log_metrics(dict(figures), step=step)

    def close(self) -> None:
        self._library.end_run()


class _Wandb:
    def __init__(self, around: Environment, config: Mapping[str, Any], _step: int) -> None:
        library: Any = importlib.import_module("wandb")
        folder = _folder(around)
        folder.mkdir(parents=True, exist_ok=True)
        same = {"id": around.job_id, "resume": "allow"} if around.job_id else {}
        self._run = library.init(dir=str(folder), config=dict(config), **same)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


_MAKERS: dict[str, Callable[[Environment, Mapping[str, Any], int], Outlet]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _Mlflow,
    "wandb": _Wandb,
}


def _folder(around: Environment) -> Path:
    return (around.checkpoint_dir or Path.cwd()) / "outlets"
