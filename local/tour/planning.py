"""A job's plan, requested before it is submitted, and compared with the placed job."""

from collections.abc import Sequence

from local.tour.world import Document, World


def planned(world: World, spec: Document) -> Document:
    """Return the plan, requested as by ``muster job plan``, and print the command.

    An operator requests it for the tenant, and so the plan has hosts.
    """
    show_plan(world, spec)
    plans: list[Document] = []

    def read() -> list[Document]:
        plans.append(of_tenant(world, spec))
        return plans

    return world.until("the plan is there", read, bool, seen=str, log="api")[-1]


def of_tenant(world: World, spec: Document) -> Document:
    tenant_id = world.tenant.whoami()["tenant_id"]
    plan: Document = world.operator.plan_job({**spec, "tenant_id": tenant_id})
    return plan


def show_plan(world: World, spec: Document) -> None:
    world.teller.write(f"[bold]muster job plan {_options(spec)}[/]")


def _options(spec: Document) -> str:
    shape = spec["shape"]
    words = [f"--nodes {shape['nodes']} --gpus {shape['gpus_per_node']} --tier {spec.get('tier', 'on_demand')}"]
    if "topology" in spec:
        words.append(f"--within {spec['topology']['required']}")
    if "wall_time_s" in spec:
        words.append(f"--wall-time {spec['wall_time_s']:.0f}s")
    return " ".join(words)


def gpus_of(hosts: Sequence[Document]) -> list[list[str]]:
    """Return the GPUs host by host in the order of ranks, of a plan or of an attempt."""
    return [host["gpus"] for host in sorted(hosts, key=lambda host: host["node_rank"])]


def names_of(hosts: Sequence[Document]) -> str:
    return ", ".join(sorted(host["node_name"] for host in hosts))


def require_as_planned(world: World, plan: Document, attempt: Document) -> None:
    """Check that each rank is on the very GPU that the plan named."""
    planned, placed = gpus_of(plan["hosts"]), gpus_of(attempt["hosts"])
    num_gpus = sum(len(gpus) for gpus in placed)
    world.require(
        "it is placed on the GPUs of the plan from before its submission",
        f"planned: {plan['outcome']}, on {names_of(plan['hosts'])}; placed: "
        + (f"the same {num_gpus} GPUs" if planned == placed else f"other GPUs, on {names_of(attempt['hosts'])}"),
        "scheduler",
        is_so=plan["outcome"] == "starts" and planned == placed,
    )
