"""Lock files: what is accepted, and the words for what is not."""

from pathlib import Path

import pytest

from muster.environments.faults import LockFaultError
from muster.environments.lock_file import LockKind, is_from_host, read_lock

HASH = "sha256:" + "a" * 64
UV_HEAD = "version = 1\nrevision = 3\nrequires-python = '>=3.11'\n"
PROJECT = "[[package]]\nname = 'job'\nversion = '0'\nsource = { virtual = '.' }\n"


def uv_package(name: str, *wheels: tuple[str, int], source: str = "registry = 'https://index.example/simple'") -> str:
    listed = ", ".join(
        f"{{ url = 'https://index.example/{file}', hash = '{HASH}', size = {size} }}" for file, size in wheels
    )
    return f"[[package]]\nname = '{name}'\nversion = '2.0'\nsource = {{ {source} }}\nwheels = [{listed}]\n"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_requirements_with_hashes_are_read_with_their_lines(tmp_path: Path) -> None:
    six, idna = f"Six==1.16.0 \\\n    --hash={HASH}\n", f"idna==3.10 ; python_version > '3' --hash={HASH}  # why\n"
    text = f"# made by a tool\n{six}\n{idna}"
    lock = read_lock(written(tmp_path, "requirements.txt", text))
    assert lock.kind is LockKind.REQUIREMENTS
    assert [(one.name, one.version, one.line) for one in lock.packages] == [("six", "1.16.0", 2), ("idna", "3.10", 5)]
    assert lock.num_bytes is None
    assert lock.line_of("IDNA") == 5


def test_a_uv_lock_states_the_size_of_the_wheel_that_a_host_takes(tmp_path: Path) -> None:
    wheels = (
        ("big-2.0-cp311-cp311-win_amd64.whl", 11),
        ("big-2.0-cp310-cp310-manylinux_2_17_x86_64.whl", 13),
        ("big-2.0-cp311-cp311-manylinux_2_28_x86_64.manylinux_2_17_x86_64.whl", 5_000),
        ("big-2.0-py3-none-any.whl", 17),
    )
    text = UV_HEAD + PROJECT + uv_package("big", *wheels) + uv_package("pure", ("pure-2.0-py3-none-any.whl", 7))
    lock = read_lock(written(tmp_path, "uv.lock", text))
    assert [(one.name, one.num_bytes) for one in lock.packages] == [("big", 5_000), ("pure", 7)]
    assert lock.num_bytes == 5_007
    assert lock.largest(1)[0].name == "big"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("six>=1", "names no exact version; write `six==VERSION`"),
        ("six", "names no exact version"),
        ("six==1.*", "names no exact version"),
        ("six==1,!=2", "names no exact version"),
        ("six==1", "has no `--hash=sha256:…`"),
        ("six==1 --hash=md5:abc", "has no `--hash=sha256:…`"),
        (f"six @ https://elsewhere.example/six.whl --hash={HASH}", "comes from a URL"),
        ("--extra-index-url https://elsewhere.example", "the option --extra-index-url is not accepted"),
        ("-e .", "the option -e is not accepted"),
        ("-r other.txt", "the option -r is not accepted"),
        ("--find-links=/tmp", "the option --find-links is not accepted"),
        ("git+https://elsewhere.example/six", "is no requirement of the form"),
        ("../six", "is no requirement of the form"),
    ],
)
def test_a_line_that_no_index_serves_by_hash_is_refused_by_number(tmp_path: Path, line: str, words: str) -> None:
    path = written(tmp_path, "requirements.txt", f"idna==3.10 --hash={HASH}\n{line}\n")
    with pytest.raises(LockFaultError, match=r"requirements\.txt line 2: ") as refused:
        read_lock(path)
    assert words in str(refused.value)
    assert refused.value.line == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "version None"),
        ("version = 2", "version 2"),
        ("version = [", "is not TOML"),
        (UV_HEAD, "names no package"),
        (UV_HEAD + PROJECT, "names no package"),
        (UV_HEAD + "package = 3", "has no list `package`"),
        (UV_HEAD + "[[package]]\nversion = '1'", "without `name` or `source`"),
        (UV_HEAD + uv_package("six", source="git = 'https://elsewhere.example/six'"), "six in uv.lock comes from git"),
        (UV_HEAD + uv_package("six", source="path = '../six.whl'"), "six in uv.lock comes from path"),
    ],
)
def test_a_uv_lock_that_cannot_be_built_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(LockFaultError) as refused:
        read_lock(written(tmp_path, "uv.lock", text))
    assert words in str(refused.value)


def test_a_lock_must_exist_and_be_text(tmp_path: Path) -> None:
    with pytest.raises(LockFaultError, match="No such file"):
        read_lock(tmp_path / "requirements.txt")
    with pytest.raises(LockFaultError, match="is no lock file"):
        read_lock(tmp_path / "Pipfile.lock")
    (tmp_path / "uv.lock").write_bytes(b"\xff\xfe")
    with pytest.raises(LockFaultError, match="is not UTF-8"):
        read_lock(tmp_path / "uv.lock")


def test_patterns_name_what_the_host_has() -> None:
    patterns = ("torch", "nvidia-*")
    assert [is_from_host(name, patterns) for name in ("Torch", "nvidia_nccl_cu12", "torchvision")] == [
        True,
        True,
        False,
    ]
