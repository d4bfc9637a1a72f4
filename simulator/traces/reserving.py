"""Places from a time on for jobs in order, on named nodes, as conservative backfill holds them in a played trace."""

from bisect import bisect_left

from simulator.traces.cluster import Cluster
from simulator.traces.nodes import NodeSet, lowest


class Places:
    """The GPUs of each node that are free from each moment on, by ``Cluster.counts``, without the places held so far.

    The first moment is now, when only idle GPUs are free: a job that should end now may run on.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._counts = cluster, cluster.counts
        self._from_s, self._free = [cluster.now_s], [cluster.idle]
        for end_s, _, held in cluster.ends:
            free = self._free[-1] + held
            if len(self._from_s) > 1 and end_s <= self._from_s[-1]:
                self._free[-1] = free
            else:
                self._from_s.append(max(end_s, cluster.now_s))
                self._free.append(free)

    def reserve(self, number: int) -> bool:
        """Hold the first place for the job. Return whether that is now: the job is then started."""
        cluster, job = self._cluster, self._cluster.jobs[number]
        first, fitting = self._first(job.num_nodes, job.gpus_per_node, cluster.estimates_s[number])
        end_s = self._from_s[first] + cluster.estimates_s[number]
        if first:
            self._hold(first, end_s, self._counts.of(lowest(fitting, job.num_nodes), job.gpus_per_node))
            return False
        cluster.start(number, ~fitting & (1 << cluster.nodes.num_nodes) - 1)
        self._hold(first, end_s, cluster.assigned[number])
        return True

    def _first(self, num_nodes: int, gpus_per_node: int, run_s: float) -> tuple[int, NodeSet]:
        """Return the first moment, by its index, from which so many nodes have room for so long; and all such nodes."""
        index = 0
        while True:
            after, common = self._common(index, num_nodes, gpus_per_node, self._from_s[index] + run_s)
            if after is None:
                return index, self._counts.nodes(common)
            index = after

    def _common(self, index: int, num_nodes: int, gpus_per_node: int, end_s: float) -> tuple[int | None, int]:
        """Return None and the nodes that have room from the moment to the end; or the next moment to try, if too few.

        The nodes are bits as ``Counts.compared`` has them.
        """
        common = -1
        for at in range(index, len(self._free)):
            if at > index and self._from_s[at] >= end_s:
                break
            free, mask = self._counts.compared(self._free[at], gpus_per_node)
            if (free & mask).bit_count() < num_nodes:
                return at + 1, 0
            common &= free & mask
            if common.bit_count() < num_nodes:
                return index + 1, 0
        return None, common

    def _hold(self, first: int, end_s: float, assigned: int) -> None:
        """Take these GPUs from the moment until the end."""
        after = bisect_left(self._from_s, end_s, first + 1)
        if after == len(self._from_s) or self._from_s[after] > end_s:
            self._from_s.insert(after, end_s)
            self._free.insert(after, self._free[after - 1])
        for at in range(first, after):
            self._free[at] -= assigned
