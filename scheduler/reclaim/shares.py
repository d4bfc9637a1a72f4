"""The GPUs that each attempt has in each cell, among the GPUs that become free to one beneficiary."""

from dataclasses import dataclass

import numpy as np

from scheduler.fleet.topology import FleetState, Ints


@dataclass(frozen=True, slots=True)
class Shares:
    """The GPUs of each attempt in each cell: one entry a pair, by attempt and cell; ``by_cell`` sorts it by cell.

    ``of_attempts``, ``of_cells``: where the pairs of each begin, in this order and in that of ``by_cell``.
    """

    attempts: Ints
    cells: Ints
    counts: Ints
    by_cell: Ints
    of_attempts: Ints
    of_cells: Ints

    def by_cells(self) -> Ints:
        """Return how many GPUs all attempts together have in each cell."""
        found: Ints = np.bincount(self.cells, self.counts, len(self.of_cells) - 1).astype(np.int64)
        return found

    def of_attempt(self, attempt: int) -> list[tuple[int, int]]:
        return list(zip(self.cells_of(attempt).tolist(), self.counts_of(attempt).tolist(), strict=True))

    def cells_of(self, attempt: int) -> Ints:
        return self.cells[self.of_attempts[attempt] : self.of_attempts[attempt + 1]]

    def counts_of(self, attempt: int) -> Ints:
        """Return the GPUs in each of ``cells_of``."""
        return self.counts[self.of_attempts[attempt] : self.of_attempts[attempt + 1]]

    def sole(self, cells: Ints) -> tuple[dict[int, list[tuple[int, int]]], dict[int, tuple[int, int]]]:
        """Return two tables about cells with a single attempt.

        The first has, by attempt, its GPUs if it is alone in one of these cells and has no other cell. The second has,
        by cell, the only attempt and its GPUs.
        """
        firsts = self.of_cells[cells]
        is_sole = self.of_cells[cells + 1] - firsts == 1
        cells, pairs = cells[is_sole], self.by_cell[firsts[is_sole]]
        attempts, counts = self.attempts[pairs], self.counts[pairs]
        is_alone = self.of_attempts[attempts + 1] - self.of_attempts[attempts] == 1
        found = list(zip(cells.tolist(), attempts.tolist(), counts.tolist(), is_alone.tolist(), strict=True))
        alone = {attempt: [(cell, count)] for cell, attempt, count, has_no_more in found if has_no_more}
        return alone, {cell: (attempt, count) for cell, attempt, count, _ in found}

    def of_cell(self, cell: int) -> list[tuple[int, int]]:
        pairs = self.by_cell[self.of_cells[cell] : self.of_cells[cell + 1]]
        return list(zip(self.attempts[pairs].tolist(), self.counts[pairs].tolist(), strict=True))


def shares_of(state: FleetState, owner: Ints, num_attempts: int) -> Shares:
    gpus = np.flatnonzero(owner >= 0)
    num_cells = state.layout.num_cells
    pairs, counts = _counted(owner[gpus] * max(num_cells, 1) + state.layout.cell_of_gpu[gpus])
    attempts, cells = np.divmod(pairs, max(num_cells, 1))
    by_cell = np.argsort(cells, kind="stable")
    return Shares(attempts, cells, counts, by_cell, _starts(attempts, num_attempts), _starts(cells[by_cell], num_cells))


def _counted(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values in order, and how often each occurs. Equal ones are mostly adjacent."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(values) else values
    lengths = np.diff(np.append(starts, len(values)))
    order = np.argsort(values[starts], kind="stable")
    ordered = values[starts][order]
    firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else ordered
    return ordered[firsts], np.add.reduceat(lengths[order], firsts) if len(firsts) else firsts


def _starts(ordered: Ints, num_keys: int) -> Ints:
    return np.append(0, np.cumsum(np.bincount(ordered, minlength=num_keys)))
