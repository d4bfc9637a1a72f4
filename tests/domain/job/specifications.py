"""Specifications of jobs of any kind, as JSON documents, with texts that files hold badly."""

from typing import Any, Final

from hypothesis import strategies as st

from muster.domain.job.spec import JobSpec

ODD_TEXTS: Final = (
    "${name}", "$${name}", "$$$ {", "$${${a}}", "${", "yes", "1e3", "012", "1:30", "~", "", " a ", "a\nb\n", "- x",
    "# c", "{{ a }}", "!!x", "'\"", "k: v", "\x85\u2028\x01\x7f", "\ufeff", "\U0001f600", "2026-01-01", "=", "<<",
)  # fmt: skip
TEXTS: Final = st.sampled_from(ODD_TEXTS) | st.text(
    st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=30
)
NAMES: Final = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,8}[a-z0-9])?", fullmatch=True)
ENV_NAMES: Final = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).map(lambda name: f"X{name}")
PATHS: Final = st.lists(st.from_regex(r"[a-zA-Z0-9 $_{}:#-]{1,8}", fullmatch=True), min_size=1, max_size=3).map(
    lambda parts: "/" + "/".join(parts)
)
IN_BUNDLE: Final = PATHS.map(lambda path: path.removeprefix("/"))
DIGESTS: Final = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
_NUMBERS: Final = st.integers(1, 1_000) | st.floats(0.5, 1_000)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_ENV: Final = st.dictionaries(ENV_NAMES, TEXTS, max_size=4)
_PROGRAMS: Final = st.fixed_dictionaries(
    {"script": PATHS},
    optional={"args": st.lists(TEXTS, max_size=4), "working_dir": PATHS, "python": PATHS, "env": _ENV},
) | st.fixed_dictionaries(
    {"launcher": st.just("command"), "argv": st.lists(TEXTS, min_size=1, max_size=4)},
    optional={"venv": PATHS, "env": _ENV},
) | st.fixed_dictionaries(
    {"script": PATHS | IN_BUNDLE, "bundle": DIGESTS},
    optional={"args": st.lists(TEXTS, max_size=4), "working_dir": PATHS | IN_BUNDLE, "python": PATHS, "env": _ENV},
) | st.fixed_dictionaries(
    {"launcher": st.just("command"), "bundle": DIGESTS,
     "argv": st.tuples(IN_BUNDLE | IN_BUNDLE.map("./".__add__) | TEXTS, TEXTS)},
    optional={"working_dir": PATHS | IN_BUNDLE, "venv": PATHS, "env": _ENV},
)  # fmt: skip
_SHAPES: Final = _some(
    nodes=st.integers(4, 9),
    gpus_per_node=st.integers(1, 8),
    ranks_per_node=st.integers(1, 16),
    min_nodes=st.just(1),
    max_nodes=st.integers(9, 12),
) | st.fixed_dictionaries({"gpus": st.integers(1, 64)})
_LABEL_VALUES: Final = st.dictionaries(NAMES, st.lists(TEXTS, min_size=1, max_size=2, unique=True), max_size=2)
_SPECIFICATIONS: Final = st.fixed_dictionaries(
    {"name": NAMES, "program": _PROGRAMS},
    optional={
        "shape": _SHAPES,
        "topology": _some(required=NAMES, preferred=NAMES, balance=NAMES),
        "layout": st.none() | _some(tp=st.integers(1, 8), dp=st.integers(1, 4), allow_tp_across_nodes=st.booleans()),
        "node_labels": _some(required=_LABEL_VALUES, forbidden=_LABEL_VALUES),
        "tier": NAMES,
        "restart": _some(max_restarts=st.integers(0, 9), gpu_oom_doublings=st.integers(0, 9)),
        "checkpoint": _some(folder=PATHS) | st.just({"store": "s3://bucket/a b".replace(" ", "-")}),
        "limits": _some(memory_bytes=st.integers(1 << 24, 1 << 40), pids=st.integers(1, 99), cpus=_NUMBERS),
        "secrets": st.lists(NAMES, max_size=3, unique=True),
        "datasets": st.lists(
            st.fixed_dictionaries({"name": NAMES, "path": PATHS}, optional={"verify": st.just("checksums")}),
            max_size=3,
            unique_by=lambda each: each["name"],
        ),
        "wall_time_s": _NUMBERS,
        "budget_gpu_hours": st.none() | _NUMBERS,
        "stop_grace_s": _NUMBERS,
        "on_node_loss": st.sampled_from(("wait", "fenced")),
        "on_hang": st.sampled_from(("restart", "hold", "notify")),
        "on_value_fault": st.sampled_from(("stop", "rollback:2", "skip")),
        "rerun_exit_codes": st.sampled_from(("megatron", "own")),
        "labels": st.dictionaries(NAMES, TEXTS, max_size=4),
    },
)


def _is_valid(document: dict[str, Any]) -> bool:
    try:
        JobSpec.model_validate(document, strict=False)
    except ValueError:
        return False
    return True


SPECIFICATIONS: Final = _SPECIFICATIONS.filter(_is_valid)
