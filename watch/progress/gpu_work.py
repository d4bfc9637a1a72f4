"""Whether the GPUs of a program compute: of a program without a sensor, nothing else distinguishes waiting from work.

A collective that waits spins: it keeps a GPU at a utilisation of 100 % without arithmetic. Its power then falls to a
fraction of the same program's power before, and its tensor cores, where their activity is known, stand still::

                         utilisation   power              tensor cores        the GPU
    bf16 training        97 %          640 W              38 %                works
    the same, waiting    100 %         210 W, peak 640 W  0 %, before 38 %    waits
    fp64 simulation      100 %         590 W              0 %, always         works
    its quieter part     100 %         210 W, peak 590 W  0 %, always         unknown

A program that never used tensor cores is not accused by them, and less power alone may be its other work. A reading
that is unknown shows nothing, neither work nor waiting.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from muster.domain.policy.watch import GpuWaitPolicy

LEAST_UTILISATION: Final = 1.0
"""Below it, in percent, nothing runs on the GPU."""
LONGEST_GAP_S: Final = 900.0
"""A longer time without a sample leaves open what the GPU did."""
LEAST_PEAK_W: Final = 100.0
"""Below such a peak the program has never computed, so its power shows nothing."""


class GpuUse(NamedTuple):
    """The part of a GPU's sample that shows its use, at a moment in seconds; NaN is unknown."""

    at_s: float
    utilisation: float = math.nan
    power_w: float = math.nan
    tensor_active_percent: float = math.nan


@dataclass(slots=True)
class _OneGpu:
    """A GPU's own past: its highest power and activity of tensor cores; the latter is -1 while it is unknown."""

    rules: GpuWaitPolicy
    peak_w: float = 0.0
    peak_tensor: float = -1.0

    def take(self, sample: GpuUse) -> None:
        self.peak_w = max(self.peak_w, sample.power_w)
        self.peak_tensor = max(self.peak_tensor, sample.tensor_active_percent)

    def works(self, sample: GpuUse) -> bool | None:
        """Return whether it computes; None if the readings do not show it. Comparisons with NaN are false."""
        if sample.tensor_active_percent >= self.rules.tensor_percent:
            return True
        if math.isnan(sample.power_w) or self.peak_w < LEAST_PEAK_W:
            return None
        if sample.power_w >= self.rules.power_share * self.peak_w:
            return True
        if not sample.utilisation >= self.rules.utilisation_percent:
            return None
        is_tensor_known = not math.isnan(sample.tensor_active_percent)
        return None if is_tensor_known and self.peak_tensor < self.rules.tensor_past_percent else False


@dataclass(slots=True)
class GpuWork:
    """Readings of GPUs over one attempt.

    They are named ``gpu.UUID.utilisation``, in percent, ``.power_w``, and ``.tensor_active_percent``.
    """

    rules: GpuWaitPolicy = field(default_factory=GpuWaitPolicy)
    _gpus: dict[str, _OneGpu] = field(default_factory=dict)

    def take(self, readings: Mapping[str, float]) -> None:
        """Note the highest power and activity of tensor cores of each GPU."""
        for name in {name.rpartition(".")[0] for name in readings if name.startswith("gpu.")}:
            self._past(name).take(_sample(name, readings))

    def is_working(self, gpus: Sequence[str], readings: Mapping[str, float]) -> bool | None:
        """Return whether any of the GPUs computes; None if the readings do not show it."""
        found = [self._is_working(f"gpu.{gpu}", readings) for gpu in gpus]
        if any(found):
            return True
        return False if found and None not in found else None

    def is_used(self, gpus: Sequence[str], readings: Mapping[str, float]) -> bool | None:
        """Return whether the program may compute on any of the GPUs, however little; None if that is unknown."""
        found = [self._is_used(f"gpu.{gpu}", readings) for gpu in gpus]
        if any(found):
            return True
        return None if None in found else False

    def _is_used(self, gpu: str, readings: Mapping[str, float]) -> bool | None:
        if (works := self._is_working(gpu, readings)) is not None:
            return works
        utilisation = readings.get(f"{gpu}.utilisation")
        return None if utilisation is None else utilisation >= LEAST_UTILISATION

    def _is_working(self, gpu: str, readings: Mapping[str, float]) -> bool | None:
        return self._past(gpu).works(_sample(gpu, readings))

    def _past(self, gpu: str) -> _OneGpu:
        return self._gpus.setdefault(gpu, _OneGpu(self.rules))


def _sample(gpu: str, readings: Mapping[str, float]) -> GpuUse:
    return GpuUse(0.0, *(readings.get(f"{gpu}.{name}", math.nan) for name in GpuUse._fields[1:]))


def was_idle(samples: Sequence[GpuUse], since_s: float, until_s: float) -> bool:
    """Return whether a GPU is known to have done nothing from ``since_s`` to ``until_s``.

    ``samples``: in order of time. A collective that waits keeps a GPU utilised, so that one counts as work.
    """
    known = [each for each in samples if since_s <= each.at_s <= until_s and not math.isnan(each.utilisation)]
    return _is_seen(known, since_s, until_s) and all(each.utilisation < LEAST_UTILISATION for each in known)


def was_waiting(samples: Sequence[GpuUse], since_s: float, until_s: float, rules: GpuWaitPolicy) -> bool:
    """Return whether a GPU is known to have waited in a collective from ``since_s`` to ``until_s``.

    ``samples``: in order of time; those before ``since_s`` are the past with which the later ones are compared. Without
    the activity of its tensor cores nothing is known: less power at full utilisation may be other work.
    """
    past = _OneGpu(rules)
    for each in samples:
        if each.at_s < since_s:
            past.take(each)
    now = [each for each in samples if since_s <= each.at_s <= until_s]
    if any(past.works(each) or each.utilisation < rules.utilisation_percent for each in now):
        return False
    known = [each for each in now if not math.isnan(sum(each))]
    return _is_seen(known, since_s, until_s) and all(past.works(each) is False for each in known)


def _is_seen(known: Sequence[GpuUse], since_s: float, until_s: float) -> bool:
    """Return whether the samples show the whole time, without a long gap."""
    moments = [since_s, *(each.at_s for each in known), until_s]
    return bool(known) and all(later - at <= LONGEST_GAP_S for at, later in pairwise(moments))
