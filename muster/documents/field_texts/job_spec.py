"""Fields of a job's specification, most of which an option of ``muster job submit`` sets."""

from typing import Final

from muster.documents.field_texts.text import FieldText

JOB_SPEC_TEXTS: Final[dict[str, str]] = {
    "CheckpointRule.folder": "A folder that all hosts of the job share; the job gets a folder of its own in it.",
    "CheckpointRule.store": "An S3-compatible object store instead, as `s3://bucket/prefix`; the job gets a prefix of"
    " its own in it. The program's environment names its address (`AWS_ENDPOINT_URL`, `AWS_REGION`). `credentials`"
    " names the one of the job's `secrets` that opens it, in the form of ~/.aws/credentials.",
    "Dataset.verify": "How its files are checked: `sizes`, or `checksums` too.",
    "Mount.source": "The path on the host.",
    "SliceRule.level": "The level, such as rack.",
    "SliceRule.ranks": "So many ranks that follow each other stand in one domain of the level.",
    "Container.image": FieldText(
        "A reference, best with its digest (`name@sha256:…`), which alone means the same on all hosts and at each"
        " attempt; or the path of a squashfs file, which enroot runs.",
        option="The image to run in: name@sha256:…, name:tag, or a squashfs file for enroot.",
    ),
    "Container.user": "The user in the container by numbers, `uid:gid`; null: the user of the host worker.",
    "GitSource.commit": FieldText(
        "The commit's whole id: 40 hexadecimal digits.",
        option="The commit: its whole id, or a branch or tag, which is looked up now.",
    ),
    "GitSource.secret": FieldText(
        "The tenant's secret that opens the repository, which the program does not get: a token or `USER:TOKEN` for"
        " https, a private key for ssh; null for a public one.",
        option="The secret that opens the repository: a token, or a private key for ssh.",
    ),
    "GitSource.url": FieldText(
        "The repository, by https or ssh, on a host that the operator names in the policy's `content.git_hosts`.",
        option="A git repository, by https or ssh, of which hosts get one commit.",
    ),
    "HostLimits.cpus": "Processors of each host that it may use, at most, 2.5 being two and a half of them; null: no"
    " limit. A program beyond it is slowed down.",
    "HostLimits.io_read_bytes_per_s": FieldText(
        "Bytes that it may read a second from each of a host's own disks, which network file systems are not; null: no"
        " limit. A program beyond it is slowed down.",
        option="How much it may read a second from each of a host's own disks; null: no limit.",
    ),
    "HostLimits.io_write_bytes_per_s": FieldText(
        "Bytes that it may write a second to each of a host's own disks, which network file systems are not; null: no"
        " limit. A program beyond it is slowed down.",
        option="How much it may write a second to each of a host's own disks; null: no limit.",
    ),
    "HostLimits.memory_bytes": FieldText(
        "Memory of each host that it may use, in bytes, without swap; null: no limit. A process beyond it is killed,"
        " and the attempt ends as `host_oom`.",
        option="Memory of each host that it may use; null: no limit.",
    ),
    "HostLimits.pids": "Processes and threads that it may have on each host, at most; null: no limit. The program's"
    " next fork then fails.",
    "NodeLabelRule.forbidden": "Labels of no host of it: none has one of these values.",
    "NodeLabelRule.required": "Labels of its hosts: each has one of these values for each name.",
    "ParallelLayout.allow_tp_across_nodes": "Whether tensor-parallel groups may span hosts, over the network, if no"
    " NVLink domain is large enough.",
    "Program.bundle": FieldText(
        "The digest of a folder that hosts get; paths may then be relative to it.",
        option="The work folder that hosts get.",
    ),
    "Program.git": "A commit of a git repository, of which a host makes the bundle before the job holds any GPU;"
    " null for none.",
    "Restart.gpu_oom_doublings": "How often to double the accumulation after a lack of GPU memory, at most. The next"
    " attempt then starts at once, divides each batch into twice as many pieces (`run.accumulation` of"
    " `muster.train`), and uses up no restart.",
    "Shape.gpus": FieldText(
        "GPUs in all, instead of `nodes` and `gpus_per_node`, on the fewest hosts that each give as many. Which those"
        " are is settled as the job is submitted, by the hosts that the fleet has then.",
        option="GPUs in all, on the fewest hosts that give as many each; no --nodes, --gpus.",
    ),
    "Shape.max_nodes": FieldText(
        "The most hosts of an elastic gang, to which it grows where GPUs are idle; null: `nodes`.",
        option="Elastic: it grows to so many hosts where GPUs are idle. Default: as --nodes.",
    ),
    "Shape.min_nodes": FieldText(
        "The fewest hosts of an elastic gang, with which it starts and continues; null: `nodes`.",
        option="Elastic: it starts, and continues, with so few hosts. Default: as --nodes.",
    ),
    "Shape.nodes": "How many hosts.",
    "TopologyRule.balance": "A level over whose domains the gang is spread evenly, over the fewest that hold it; null"
    " for none.",
    "TopologyRule.preferred": "A level of which one domain holds the whole gang if it can, such as rack; null: the"
    " smallest domain that fits. Then wider ones are tried, up to `required`. A host whose place is unknown never"
    " satisfies a required level.",
    "TopologyRule.required": "A level of which one domain must hold the whole gang, such as rack; null for none."
    " Until it can the job waits.",
    "TopologyRule.slices": "So many ranks in one domain of a level; one a level, such as 32 ranks a block and of these"
    " 16 a rack.",
    "allows_source": "Whether source distributions are built too, which runs their code; otherwise only wheels are"
    " taken.",
    "args": "Arguments of the script.",
    "argv": "The command and its arguments, one text each; no shell reads them.",
    "budget_gpu_hours": "GPU hours that all attempts together may hold; then the job is stopped. Null: no limit.",
    "checkpoint": "Where checkpoints are kept, and how often they are saved.",
    "container": "The image that the program runs in; null for the host's own system.",
    "cpus": "Processors that the program may use on each host, at most; null: no limit.",
    "credentials": "The name of the secret with which the store of checkpoints is reached; null for none.",
    "datasets": "Data that must be on its hosts, and are checked, before it starts; the program finds each by"
    " `MUSTER_DATASET_<NAME>`.",
    "dp": "Ranks of data parallelism.",
    "encryption_keys": "The name of the secret with the keys of encrypted checkpoints; null for none.",
    "engine": "The container engine; null: the one that the host has.",
    "env": "Environment variables, by name.",
    "environment": "The environment that is built from a lock file of the bundle; null for none.",
    "extras": "Extras of the project, for a `uv.lock` alone.",
    "from_host": "Patterns of packages that the host's interpreter has, such as torch and nvidia-*, and that are not"
    " installed.",
    "fsdp": "Ranks of fully sharded data parallelism.",
    "gpus_per_node": "GPUs on each host.",
    "Environment.groups": "Dependency groups of the project, for a `uv.lock` alone.",
    "PartEnvironment.groups": "Dependency groups of the project, for a `uv.lock` alone.",
    "io_read_bytes_per_s": "Bytes that the program may read from each disk of a host, a second; null: no limit.",
    "io_write_bytes_per_s": "Bytes that the program may write to each disk of a host, a second; null: no limit.",
    "launcher": FieldText(
        "`torchrun` runs a script once a rank, `command` runs a command once a host.",
        option="Run as it is, without torchrun, once a host.",
    ),
    "layout": "How the ranks are divided into groups of parallelism; null: by the program alone.",
    "job_class": "The class of the policy that says what the job may expect, such as production; null: the policy's"
    " default class.",
    "limits": "What the program may use of each host.",
    "lock": "The path in the bundle of a `uv.lock`, or of a `.txt` of requirements with hashes.",
    "manifest": "The path of a list of the data set's files with their checksums; null for none.",
    "max_restarts": "New attempts that its own faults may cost, in a row without progress.",
    "mounts": "Folders of the host that the container sees.",
    "node_labels": "Labels that the hosts must have, or must not have.",
    "on_hang": "The reaction if no rank makes progress; null: as the policy says.",
    "on_node_loss": "`wait` for a silent host until its lease ends, or relaunch `fenced` at once; null: `fenced` for"
    " several hosts whose program trains by `muster.train`, since an old attempt's commits are fenced off there; else"
    " `wait`.",
    "on_straggler": "The reaction to a slow rank that the others wait for; null: as the policy says.",
    "on_value_fault": "The reaction of `muster.train` to a value that is not finite, such as rollback:2; null: as the"
    " program says.",
    "JobSpec.outputs": "Patterns of files in its working folder that are kept, besides all of `MUSTER_OUTPUT_DIR`.",
    "path": "The path on every host.",
    "pids": "Processes and threads that the program may have on each host, at most; null: no limit.",
    "pp": "Ranks of pipeline parallelism.",
    "program": "What is run.",
    "python": "The path of the interpreter; null: the host's.",
    "ranks_per_node": "Ranks on each host; null: one a GPU.",
    "read_only": "Whether the program can only read it.",
    "rerun_exit_codes": "What exit codes 16 and 17 of its program mean; null: run again on another GPU, and diverged.",
    "restart": "How often it is restarted.",
    "script": "The path of the script; null for a command.",
    "secret_env": "Variable → the secret whose value it has, for programs that read no file.",
    "secrets": "Names of the tenant's secrets, never values; the program reads each as a file.",
    "shape": "Hosts, GPUs and ranks.",
    "stop_grace_s": FieldText(
        "Seconds between SIGTERM and SIGKILL; null: by policy.", option="Between SIGTERM and SIGKILL, such as 30s."
    ),
    "target": "The path within the container; null: as on the host.",
    "topology": "How near to each other the hosts must be.",
    "tp": "Ranks of tensor parallelism.",
    "venv": "The path of a virtual environment on the hosts; null for none.",
    "wall_time_s": FieldText(
        "Seconds for which it may run; null: no limit.", option="How long it may run, such as 10m or 2h."
    ),
    "working_dir": "The program's working folder; null: one of the attempt's own.",
}
