"""A job's conditions on its place as text, a line each."""

from collections.abc import Iterator

from muster.domain.job.request import JobRequest


def place_words(request: JobRequest) -> Iterator[str]:
    """Yield the conditions; none for a job that may be placed anywhere."""
    topology, layout = request.topology, request.layout
    if topology.required is not None:
        yield f"within one {topology.required}"
    if topology.preferred is not None:
        yield f"near one {topology.preferred}"
    for one in topology.slices:
        yield f"each {one.ranks} ranks in one {one.level}"
    if topology.balance is not None:
        yield f"spread evenly over each {topology.balance}"
    if layout is not None:
        yield f"pp {layout.pp} × dp {layout.dp} × fsdp {layout.fsdp} × tp {layout.tp}"
        if layout.allow_tp_across_nodes and layout.tp > request.shape.num_ranks_per_node:
            yield "its tensor-parallel groups may span hosts, as its submitter allowed: slow where no NVLink joins them"
    for name, values in sorted(request.node_labels.required.items()):
        yield f"on hosts with {name} {' or '.join(values)}"
    for name, values in sorted(request.node_labels.forbidden.items()):
        yield f"not on hosts with {name} {' or '.join(values)}"
