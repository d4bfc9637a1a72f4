"""The overtaken work of each job: done by jobs that came later than it and started before it."""


class PassedWork:
    """The overtaken work of numbered jobs, in order of submission.

    Work that overtook one job overtook each earlier one too, so one sum suffices. ``first_spared``: every pending job
    before it was overtaken by ``bound_gpu_s`` or more. The sum is over jobs after that one: ``_done_gpu_s`` + now ×
    ``_num_gpus``, so that no job is visited while it runs.
    """

    __slots__ = ("_bound_gpu_s", "_done_gpu_s", "_done_of", "_gpus_of", "_num_gpus", "first_spared")

    def __init__(self, num_jobs: int, bound_gpu_s: float) -> None:
        self.first_spared = 0
        self._bound_gpu_s = bound_gpu_s
        self._done_gpu_s, self._num_gpus = 0.0, 0
        self._done_of, self._gpus_of = [0.0] * num_jobs, [0] * num_jobs

    def starts(self, number: int, gpus: int, now_s: float) -> None:
        self._changes(number, gpus, -gpus * now_s)

    def ends(self, number: int, gpus: int, now_s: float) -> None:
        self._changes(number, -gpus, gpus * now_s)

    def _changes(self, number: int, gpus: int, gpu_s: float) -> None:
        self._done_of[number] += gpu_s
        self._gpus_of[number] += gpus
        if number > self.first_spared:
            self._done_gpu_s += gpu_s
            self._num_gpus += gpus

    def advance(self, now_s: float) -> int:
        """Return ``first_spared`` as it is now."""
        while self._done_gpu_s + self._num_gpus * now_s >= self._bound_gpu_s:
            self.first_spared += 1
            self._done_gpu_s -= self._done_of[self.first_spared]
            self._num_gpus -= self._gpus_of[self.first_spared]
        return self.first_spared
