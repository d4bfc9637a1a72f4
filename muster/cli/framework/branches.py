"""Every command of the root: its module, its description in a line, and its heading."""

from typing import Final

from muster.cli.framework.installed import Part
from muster.cli.framework.tree import Branch

WORK: Final = "Work"
FLEET: Final = "Fleet"
RULES: Final = "Rules, record and access"
HERE: Final = "This machine"
PROCESSES: Final = "Processes of a control plane and its hosts"


def _group(room: str, words: str, panel: str, *, needs: Part | None = None) -> Branch:
    return Branch(f"muster.cli.{room}:app", words, panel, needs=needs)


def _alone(room: str, words: str, panel: str, example: str, *, needs: Part | None = None) -> Branch:
    return Branch(f"muster.cli.{room}", words, panel, example, needs)


BRANCHES: Final = {
    "job": _group("job.jobs", "Jobs: submit, watch, cancel.", WORK),
    "bundle": _group("job.bundles", "Bundles: the work folders that jobs start in.", WORK),
    "verdict": _group("job.verdicts", "Verdicts: hangs, stragglers and wrong values of running jobs.", WORK),
    "reclaim": _group("job.reclaims", "Reclaims: GPUs taken back with notice, for which job and until when.", WORK),
    "ckpt": _group("job.checkpoints", "Checkpoints: fetch them, whether they are whole, and which stay.", WORK),
    "data": _group(
        "job.datasets", "Datasets on a disk: what is in them, and whether they are whole.", WORK, needs=Part.TRAIN
    ),
    "mfu": _alone(
        "job.mfu:mfu",
        "Compute the share of its GPUs' peak that a training run reaches.",
        WORK,
        "muster mfu --model H200 --tokens-per-s 13000 --params 7.5e9 --layers 32 --heads 32 --head-dim 128 "
        "--sequence 8192",
        needs=Part.TRAIN,
    ),
    "train": _group(
        "job.train", "Trainings: look into one that fails, check that one resumes exactly.", WORK, needs=Part.WHOLE
    ),
    "secret": _group("admin.secrets", "Secrets of jobs: set, list, rotate, delete.", WORK),
    "route": _group("admin.routes", "Routes: where notifications go, by webhook, mail, Slack or pager.", WORK),
    "gpu": _group("gpu.gpus", "GPUs: what is known of each, and what to do about it.", FLEET),
    "node": _group("node.nodes", "Nodes: the GPU hosts.", FLEET),
    "cohort": _group("gpu.cohorts", "Cohorts: GPUs that may be mixed in one gang.", FLEET),
    "cordon": _group("node.cordons", "Cordons: keep a node or GPU out of new placements.", FLEET),
    "burnin": _group("gpu.burn_ins", "Burn-ins: proofs that a GPU computes right.", FLEET),
    "incident": _group("fleet.incidents", "Incidents: what needs attention.", FLEET),
    "ledger": _group("fleet.ledger", "The ledger: what each GPU's time was.", FLEET),
    "breaker": _group("gpu.breakers", "The circuit breaker: how much rules have taken out.", FLEET),
    "figures": _alone(
        "fleet.figures:figures",
        "Show the indicators M1 to M15: what each means, or one over time.",
        FLEET,
        "muster figures step_time --since 2d --by tier",
    ),
    "event": _group("fleet.events", "Events: what happened, in order.", RULES),
    "audit": _group("admin.audit", "The audit: list changes, and verify the record.", RULES),
    "policy": _group("admin.policies", "The policy: every number and rule, and its versions.", RULES),
    "objectives": _alone(
        "admin.objectives:objectives",
        "Show the objectives of job classes, and the rest of their error budgets.",
        RULES,
        "muster objectives",
    ),
    "bill": _group("admin.bills", "Bills: statements by month, exported, signed and verified.", RULES),
    "rates": _group("admin.rates", "Rate cards: what an hour of a GPU costs, by model and tier.", RULES),
    "apply": _alone(
        "apply.apply:apply",
        "Make tenants, quotas, cordons, rate cards and the policy as files say; the differences are shown first.",
        RULES,
        "muster apply -f fleet.yaml --reason 'the new contract'",
    ),
    "system": _alone(
        "fleet.system:system",
        "Show what is pending in the control plane, and for how long.",
        RULES,
        "muster system",
    ),
    "tenant": _group("admin.tenants", "Tenants and their quotas.", RULES),
    "person": _group("admin.persons", "Persons, who sign in to the console.", RULES),
    "key": _group("admin.keys", "API keys: create, list, revoke.", RULES),
    "content": _group("admin.content", "The content store: compare it with the database.", RULES, needs=Part.WHOLE),
    "join-token": _group("admin.join_tokens", "Join tokens, by which hosts enrol.", RULES),
    "run": _alone(
        "job.run:run",
        "Run a program on this machine, supervised, without a control plane.",
        HERE,
        "muster run --ranks 2 -- examples/train_transformer.py --steps 200",
        needs=Part.WHOLE,
    ),
    "hang": _group("job.hang", "Hangs: which rank holds up the others, from dumps and logs.", HERE, needs=Part.WHOLE),
    "dcgm": _group("gpu.dcgm", "What DCGM says: its diagnoses and its exporter's metrics.", HERE, needs=Part.WHOLE),
    "xid": _alone(
        "gpu.xid:xid",
        "Explain an XID, or the XIDs in the lines of a kernel log.",
        HERE,
        "muster xid 95",
        needs=Part.WHOLE,
    ),
    "simulate": _alone(
        "sim.simulate:simulate",
        "Play a trace of jobs on a simulated fleet, under a rule of the queue.",
        HERE,
        "muster simulate --trace philly.csv.gz --nodes 60 --policy easy --json out.json",
        needs=Part.WHOLE,
    ),
    "up": _alone("host.up:up", "Start the whole control plane on this machine.", HERE, "muster up", needs=Part.WHOLE),
    "doctor": _alone(
        "fleet.doctor:doctor", "Find what is wrong here: settings, control plane, fleet.", HERE, "muster doctor"
    ),
    "support-bundle": _alone(
        "admin.support_bundle:support_bundle",
        "Everything that support asks for, without secrets.",
        HERE,
        "muster support-bundle --output case-17.zip",
    ),
    "login": _alone(
        "framework.sign_in:login",
        "Sign in to a control plane: confirm a code in the console, or give a key.",
        HERE,
        "muster login https://muster.example",
    ),
    "logout": _alone(
        "framework.sign_in:logout",
        "Sign out: revoke the key that `muster login` got, and forget the profile.",
        HERE,
        "muster logout",
    ),
    "whoami": _alone(
        "framework.sign_in:whoami",
        "Show the control plane in use, the principal of its key, and the permissions of its role.",
        HERE,
        "muster whoami",
    ),
    "profile": _group("framework.profiles", "Profiles: which control plane, with which key.", HERE),
    "sim": _group("sim.sim", "Faults of the local stack's simulated GPUs.", HERE, needs=Part.WHOLE),
    "completion": _alone(
        "framework.completion:completion",
        "The script that completes words in a shell.",
        HERE,
        'eval "$(muster completion bash)"',
    ),
    "exit-codes": _alone("framework.exit_codes:exit_codes", "List the exit codes.", HERE, "muster exit-codes"),
    "api": _alone(
        "host.processes:api",
        "Serve the REST API, and the console at /console.",
        PROCESSES,
        "muster api",
        needs=Part.WHOLE,
    ),
    "store": _group("host.store", "Our own content store: chunks of bundles and outputs.", PROCESSES, needs=Part.WHOLE),
    "scheduler": _alone(
        "host.processes:scheduler",
        "Run the scheduler: one is active, others stand by.",
        PROCESSES,
        "muster scheduler",
        needs=Part.WHOLE,
    ),
    "worker": Branch(
        "muster.cli.host.processes:worker", "Workers: of the control plane, of a GPU host.", PROCESSES, needs=Part.WHOLE
    ),
    "agent": _group("host.agent_group", "The agent of a GPU host: what its GPUs say.", PROCESSES, needs=Part.WHOLE),
    "migrate": _alone(
        "host.processes:migrate",
        "Bring the database to this version's revision.",
        PROCESSES,
        "muster migrate",
        needs=Part.WHOLE,
    ),
    "bootstrap": _alone(
        "admin.bootstrap:bootstrap",
        "Make the first operator's key of a new control plane.",
        PROCESSES,
        "muster bootstrap /etc/muster/operator.key",
        needs=Part.WHOLE,
    ),
    "restored": _alone(
        "admin.restored:restored",
        "Say that the database came back from a backup, before the control plane is started again.",
        PROCESSES,
        "muster restored --reason 'disk lost, backup of 04:00'",
        needs=Part.WHOLE,
    ),
    "health": _group(
        "host.health", "Check the processes of this machine; replay the judgement.", PROCESSES, needs=Part.WHOLE
    ),
}
