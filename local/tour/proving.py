"""Step 1: hosts enrol, every GPU is burnt in, serves its probation and is HEALTHY."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

from local.tour.world import Document, World

STAGE: Final = 1
PATIENCE_S: Final = 300.0


def prove(world: World) -> None:
    num_hosts, num_gpus = len(world.hosts), sum(host.num_gpus for host in world.hosts)
    world.teller.stage(
        STAGE,
        "Hosts enrol, and every GPU is proved before anything runs on it",
        "agents report by their own keys; a burn-in with exact sums; probation; only then HEALTHY",
    )
    nodes = world.until(
        f"{num_hosts} hosts are LIVE",
        world.operator.nodes,
        lambda found: sum(node["contact"] == "LIVE" for node in found) >= num_hosts,
        seen=lambda found: ", ".join(f"{node['name']} {_contact(node)}" for node in found) or "none has enrolled",
        log=f"agent-{world.hosts[0].name}",
    )
    names = ", ".join(sorted(f"{node['name']} in {node['rack']}" for node in nodes))
    world.teller.passed(f"{num_hosts} hosts enrolled by one-time tokens and LIVE", names)
    _burn_in(world, num_gpus)
    gpus = world.until(
        f"{num_gpus} GPUs are HEALTHY",
        world.operator.gpus,
        lambda found: _standings(found)["HEALTHY"] >= num_gpus,
        seen=lambda found: _words(_standings(found)),
        log="worker-control",
        patience_s=PATIENCE_S,
    )
    cohorts = Counter(gpu["cohort_key"] for gpu in gpus if gpu["standing"] == "HEALTHY")
    sizes = " and ".join(str(size) for size in sorted(cohorts.values()))
    noun = "cohort" if len(cohorts) == 1 else "cohorts"
    world.teller.passed(f"{num_gpus} GPUs are HEALTHY after probation", f"{len(cohorts)} {noun} of {sizes} equal GPUs")


def _contact(node: Document) -> str:
    return "is enrolled" if node["last_heartbeat_at"] is None else f"is {node['contact']}"


def _burn_in(world: World, num_gpus: int) -> None:
    done = world.until(
        f"{num_gpus} GPUs pass their intake burn-in",
        lambda: world.operator.burn_ins(outcome="passed", limit=200),
        lambda found: len({one["gpu_uuid"] for one in found}) >= num_gpus,
        seen=lambda found: f"{len(found)} have passed; {_words(_standings(world.operator.gpus()))}",
        log=f"agent-{world.hosts[0].name}",
        patience_s=PATIENCE_S,
    )
    world.teller.passed(f"{num_gpus} GPUs passed their intake burn-in", _figures(done))


def _figures(done: Sequence[Document]) -> str:
    """Return as text how fast each model's GPUs multiply."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for one in done:
        rates[one["model"]].append(one["rates"]["gemm_bf16_sustained_tflops"])
    words = (f"{model}: {median(found):.0f} TFLOP/s in bf16" for model, found in sorted(rates.items()))
    return f"{'; '.join(words)} (medians; simulated); exact sums, memory and copies right"


def _standings(gpus: Sequence[Document]) -> Counter[str]:
    return Counter(gpu["standing"] for gpu in gpus)


def _words(counts: Counter[str]) -> str:
    return " · ".join(f"{name} {number}" for name, number in counts.most_common()) or "no GPU is known"
