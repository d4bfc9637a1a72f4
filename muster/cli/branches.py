"""Every command of the root: where it lives, what it is in a line, and under which heading it stands."""

from typing import Final

from muster.cli.tree import Branch

WORK: Final = "Work"
FLEET: Final = "Fleet"
RULES: Final = "Rules, record and access"
HERE: Final = "This machine"
PROCESSES: Final = "Processes of a control plane and its hosts"


def _group(room: str, words: str, panel: str) -> Branch:
    return Branch(f"muster.cli.{room}:app", words, panel)


def _alone(room: str, words: str, panel: str, example: str) -> Branch:
    return Branch(f"muster.cli.{room}", words, panel, example)


BRANCHES: Final = {
    "job": _group("jobs", "Jobs: submit, watch, cancel.", WORK),
    "reclaim": _group("reclaims", "Reclaims: GPUs taken back with notice, for whom and until when.", WORK),
    "ckpt": _group("checkpoint_folders", "Checkpoints: which there are, whether they are whole, and which stay.", WORK),
    "data": _group("datasets", "Datasets on a disk: what is in them, and whether they are whole.", WORK),
    "mfu": _alone(
        "mfu:mfu",
        "What share of its GPUs' peak a training run reaches.",
        WORK,
        "muster mfu --model H200 --tokens-per-s 13000 --params 7.5e9 --layers 32 --heads 32 --head-dim 128 "
        "--sequence 8192",
    ),
    "train": _group("train", "Trainings: look into one that fails.", WORK),
    "gpu": _group("gpus", "GPUs: what is known of each, and what to do about it.", FLEET),
    "node": _group("nodes", "Nodes: the GPU hosts.", FLEET),
    "cohort": _group("cohorts", "Cohorts: GPUs that may be mixed in one gang.", FLEET),
    "cordon": _group("cordons", "Cordons: keep a node or GPU out of new placements.", FLEET),
    "burnin": _group("burn_ins", "Burn-ins: proofs that a GPU computes right.", FLEET),
    "incident": _group("incidents", "Incidents: what wants a person.", FLEET),
    "breaker": _group("breakers", "The circuit breaker: how much rules have taken out.", FLEET),
    "event": _group("events", "Events: what happened, in order.", RULES),
    "audit": _group("audit", "The audit: who changed what, and whether it was touched.", RULES),
    "policy": _group("policies", "The policy: every number and rule, and its versions.", RULES),
    "system": _alone("system:system", "What waits in the control plane, and for how long.", RULES, "muster system"),
    "tenant": _group("tenants", "Tenants and their quotas.", RULES),
    "person": _group("persons", "Persons, who sign in to the console.", RULES),
    "key": _group("keys", "API keys: create, list, revoke.", RULES),
    "join-token": _group("join_tokens", "Join tokens, by which hosts enrol.", RULES),
    "run": _alone(
        "run:run",
        "Run a program on this machine, supervised, without a control plane.",
        HERE,
        "muster run --ranks 2 -- examples/train_transformer.py --steps 200",
    ),
    "dcgm": _group("dcgm", "What DCGM says: its diagnoses and its exporter's metrics.", HERE),
    "xid": _alone("xid:xid", "What an XID is, or which ones the lines of a kernel log hold.", HERE, "muster xid 95"),
    "simulate": _alone(
        "simulate:simulate",
        "Play a trace of jobs on a simulated fleet, under a rule of the queue.",
        HERE,
        "muster simulate --trace philly.csv.gz --nodes 60 --policy easy --json out.json",
    ),
    "up": _alone("up:up", "Start the whole control plane on this machine.", HERE, "muster up"),
    "doctor": _alone(
        "doctor:doctor", "Find what is wrong here: settings, control plane, fleet.", HERE, "muster doctor"
    ),
    "support-bundle": _alone(
        "support_bundle:support_bundle",
        "Everything that support asks for, without secrets.",
        HERE,
        "muster support-bundle --output case-17.zip",
    ),
    "profile": _group("profiles", "Profiles: which control plane, with which key.", HERE),
    "sim": _group("sim", "Faults of the local stack's simulated GPUs.", HERE),
    "completion": _alone(
        "completion:completion",
        "The script that completes words in a shell.",
        HERE,
        'eval "$(muster completion bash)"',
    ),
    "exit-codes": _alone("exit_codes:exit_codes", "What each exit code means.", HERE, "muster exit-codes"),
    "api": _alone("stack:api", "The REST API, and the console at /console.", PROCESSES, "muster api"),
    "scheduler": _alone(
        "stack:scheduler", "The scheduler: one active, others stand by.", PROCESSES, "muster scheduler"
    ),
    "worker": Branch("muster.cli.stack:worker", "Workers: of the control plane, of a GPU host.", PROCESSES),
    "agent": _group("agent_group", "The agent of a GPU host: what its GPUs say.", PROCESSES),
    "migrate": _alone("stack:migrate", "Bring the database to this version's revision.", PROCESSES, "muster migrate"),
    "bootstrap": _alone(
        "bootstrap:bootstrap",
        "Make the first operator's key of a new control plane.",
        PROCESSES,
        "muster bootstrap /etc/muster/operator.key",
    ),
    "restored": _alone(
        "restored:restored",
        "Say that the database came back from a backup, before the control plane is started again.",
        PROCESSES,
        "muster restored --reason 'disk lost, backup of 04:00'",
    ),
    "health": _group("health", "Whether the processes here do their work; and the judgement, played again.", PROCESSES),
}
