"""The process that fetches a commit: real repositories over http, and each fault with its words."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from muster.content.read import read_folder
from tests.waiting import wait_until
from workers.host.content.environment_build import BuildEnd
from workers.host.content.faults import NotBuiltError
from workers.host.content.fetch_order import GitOrder, Progress
from workers.host.content.git_build import GitBuildOrder
from workers.host.content.git_making import GitMaking

from .bundle_case import content_of
from .environment_case import new_host
from .git_server import GIT, GitServer, WorkTree, git_server

TOKEN = "glpat-0f-acme-deploys"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    (tmp_path / "served").mkdir()
    with git_server(tmp_path / "served") as served:
        yield served


@pytest.fixture
def tree(tmp_path: Path, server: GitServer) -> WorkTree:
    return WorkTree.new(tmp_path / "tree", server.root)


def order(folder: Path, url: str, commit: str, secret: str | None = None, **limits: int) -> GitBuildOrder:
    folder.mkdir()
    given = {"within_s": 60, "max_bytes": 1 << 20, "max_files": 100, "free_bytes": 0, **limits}
    return GitBuildOrder(
        url=url,
        commit=commit,
        secret=None if secret is None else secret.encode(),
        secret_name=None if secret is None else "deploy",
        folder=str(folder / "work"),
        target=str(folder / "built"),
        log=str(folder / "build.log"),
        **given,
    )


def begun(given: GitBuildOrder) -> "subprocess.Popen[str]":
    """Start the process as a host does, with the order in a descriptor."""
    descriptor = os.memfd_create("order", 0)
    os.write(descriptor, msgspec.json.encode(given))
    os.lseek(descriptor, 0, os.SEEK_SET)
    command = [sys.executable, "-m", "workers.host.content.git_build", str(descriptor)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, pass_fds=[descriptor])
    os.close(descriptor)
    return process


def end_of(process: "subprocess.Popen[str]") -> BuildEnd:
    printed, faults = process.communicate(timeout=120)
    assert printed, faults
    return msgspec.convert(json.loads(printed.splitlines()[-1]), BuildEnd)


def built(folder: Path, url: str, commit: str, secret: str | None = None, **limits: int) -> BuildEnd:
    return end_of(begun(order(folder, url, commit, secret, **limits)))


def fault(end: BuildEnd) -> tuple[str, str]:
    return end.found, end.words


def test_the_files_of_a_commit_without_its_repository(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    (tree.folder / ".gitignore").write_text("data/\n")
    (tree.folder / "run.sh").write_text("#!/bin/sh\n")
    (tree.folder / "run.sh").chmod(0o755)
    (tree.folder / "link").symlink_to("main.py")
    wanted = tree.commit(**{"main.py": b"print(1)\n", "data__words": b"tracked all the same\n"})
    tree.commit(**{"main.py": b"print(2)\n"})
    assert built(tmp_path / "own", server.url, wanted) == BuildEnd(found="built")
    target = tmp_path / "own" / "built"
    assert content_of(target) == {
        ".gitignore": b"data/\n",
        "data/words": b"tracked all the same\n",
        "main.py": b"print(1)\n",
        "run.sh": b"#!/bin/sh\n",
    }
    assert (target / "link").readlink() == Path("main.py")
    tree.git("checkout", "--quiet", wanted)
    assert read_folder(target, takes_all=True).digest == _digest_of(tree, tmp_path), "as the same files from a folder"


def _digest_of(tree: WorkTree, tmp_path: Path) -> str:
    clone = tmp_path / "clone"
    shutil.copytree(tree.folder, clone, symlinks=True, ignore=lambda _, names: {".git"} & set(names))
    return read_folder(clone, takes_all=True).digest


@pytest.mark.parametrize("secret", [TOKEN, f"deploy-bot:{TOKEN}\n"])
def test_a_token_opens_it(server: GitServer, tree: WorkTree, tmp_path: Path, secret: str) -> None:
    commit = tree.commit(**{"main.py": b"print(1)\n"})
    server.token = TOKEN
    assert built(tmp_path / "own", server.url, commit, secret) == BuildEnd(found="built")


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("another", "does not accept the secret deploy: rotate it by `muster secret rotate deploy`"),
        (None, "asks for a token or key: set one by `muster secret set`"),
        ("two\nlines", "the secret deploy is no token in one line"),
    ],
)
def test_a_wrong_secret_is_final(
    server: GitServer, tree: WorkTree, tmp_path: Path, secret: str | None, words: str
) -> None:
    commit = tree.commit(**{"main.py": b"print(1)\n"})
    server.token = TOKEN
    end = built(tmp_path / "own", server.url, commit, secret)
    assert end.found == "final"
    assert words in end.words
    log = tmp_path / "own" / "build.log"
    assert "another" not in (log.read_text() if log.exists() else "")


def test_the_secret_is_in_no_argument_variable_or_file(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    commit = tree.commit(**{"main.py": b"print(1)\n"})
    server.token = TOKEN
    server.is_open.clear()
    with begun(order(tmp_path / "own", server.url, commit, TOKEN)) as process:
        wait_until(lambda: server.num_packs() > 0)
        running = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert {one.name() for one in running} >= {"git", "git-remote-http"}
        shown = [f"{one.cmdline()}{one.environ()}" for one in running]
        files = [path for path in (tmp_path / "own").rglob("*") if path.is_file()]
        server.is_open.set()
        assert end_of(process) == BuildEnd(found="built")
    assert not [words for words in shown if TOKEN in words]
    assert files
    assert not [
        path for path in (tmp_path / "own").rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]


def test_a_commit_that_was_not_pushed(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    tree.commit(**{"main.py": b"print(1)\n"})
    found, words = fault(built(tmp_path / "own", server.url, "0123456789" * 4))
    assert (found, words) == ("final", f"the repository {server.url} has no such commit: was it pushed?")
    assert server.num_packs() <= 2, "the whole repository was not fetched for that"


def test_a_repository_that_is_not_there(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    commit = tree.commit(**{"main.py": b"print(1)\n"})
    found, words = fault(built(tmp_path / "own", f"{server.origin}/other.git", commit))
    assert found == "final"
    assert f"there is no repository {server.origin}/other.git; it may need a secret" in words


def test_an_id_of_a_tag_names_no_commit(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    tree.commit(**{"main.py": b"print(1)\n"})
    tree.git("tag", "--annotate", "--message=one", "v1")
    tree.git("push", "--quiet", str(tree.bare), "v1")
    found, words = fault(built(tmp_path / "own", server.url, tree.git("rev-parse", "v1")))
    assert found == "final"
    assert "is a tag, and no commit" in words


def test_plain_files_of_a_repository_are_fetched_whole(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    wanted = tree.commit(**{"main.py": b"print(1)\n"})
    tree.commit(**{"main.py": b"print(2)\n"})
    subprocess.run([GIT, "-C", tree.bare, "update-server-info"], check=True)
    server.is_plain = True
    assert built(tmp_path / "own", server.url, wanted) == BuildEnd(found="built")
    assert content_of(tmp_path / "own" / "built") == {"main.py": b"print(1)\n"}


def test_an_address_that_leads_elsewhere_is_not_followed(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    commit = tree.commit(**{"main.py": b"print(1)\n"})
    (tmp_path / "inside").mkdir()
    with git_server(server.root) as inside:
        server.moved_to = inside.origin
        found, words = fault(built(tmp_path / "own", server.url, commit))
        assert inside.requested == []
    assert found == "final"
    assert "leads to another address, which is not followed" in words


def test_a_server_that_does_not_answer_may_answer_later(tree: WorkTree, tmp_path: Path) -> None:
    commit = tree.commit(**{"main.py": b"print(1)\n"})
    found, words = fault(built(tmp_path / "own", "http://127.0.0.1:1/code.git", commit))
    assert found == "passing"
    assert "http://127.0.0.1:1/code.git could not be read: fatal: unable to access" in words


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nnone\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="this machine has no ssh")
def test_ssh_is_used_with_a_private_key_alone(tmp_path: Path) -> None:
    url = "ssh://git@127.0.0.1:1/code.git"
    for number, secret in enumerate((None, KEY)):
        found, words = fault(built(tmp_path / f"own{number}", url, "0a" * 20, secret))
        assert found == "passing"
        assert f"{url} could not be read: ssh: connect to host 127.0.0.1 port 1" in words
    found, words = fault(built(tmp_path / "token", url, "0a" * 20, TOKEN))
    assert (found, words) == ("final", "the secret deploy is no private key, which an ssh:// URL needs")


def test_a_fetch_that_takes_too_long_is_ended(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    commit = tree.commit(**{"main.py": b"print(1)\n"})
    server.is_open.clear()
    found, words = fault(built(tmp_path / "own", server.url, commit, within_s=1))
    assert (found, words) == ("passing", f"{server.url} did not give the commit in time")


def test_submodules_are_refused_by_name(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    first = tree.commit(**{"main.py": b"print(1)\n"})
    tree.git("update-index", "--add", "--cacheinfo", f"160000,{first},third/party")
    found, words = fault(built(tmp_path / "own", server.url, tree.push()))
    assert found == "final"
    assert words.startswith("the commit has submodules, which are not fetched: third/party")


def test_files_in_lfs_are_refused_by_name(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 1000\n".encode()
    attributes = b"*.bin filter=lfs diff=lfs merge=lfs -text\n"
    commit = tree.commit(**{"model.bin": pointer, ".gitattributes": attributes})
    found, words = fault(built(tmp_path / "own", server.url, commit))
    assert found == "final"
    assert words.startswith("the commit has files in Git LFS, which are not fetched: model.bin.")


def test_a_commit_that_is_too_large_names_its_largest_files(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    commit = tree.commit(**{"main.py": b"print(1)\n", "zeros": bytes(3 << 20)})
    found, words = fault(built(tmp_path / "own", server.url, commit))
    assert found == "final"
    assert "(content.bundle_bytes). The largest files: zeros (" in words
    assert not (tmp_path / "own" / "built" / "zeros").exists()
    found, words = fault(built(tmp_path / "other", server.url, commit, max_bytes=1 << 30, max_files=1))
    assert words == "the commit has 2 files, and 1 are accepted (content.bundle_files)"


def test_a_tree_that_has_itself_in_it_many_times_over_is_not_listed_to_its_end(
    server: GitServer, tree: WorkTree, tmp_path: Path
) -> None:
    """Ten to the twelfth files, of which the repository has twelve objects."""
    tree.commit(**{"main.py": b"print(1)\n"})
    inner = tree.git("rev-parse", "HEAD^{tree}")
    for _ in range(12):
        inner = tree.git("mktree", stdin="".join(f"040000 tree {inner}\td{number}\n" for number in range(10)))
    commit = tree.git("commit-tree", "-m", "many", inner)
    tree.git("push", "--quiet", str(tree.bare), f"{commit}:refs/heads/many")
    found, words = fault(built(tmp_path / "own", server.url, commit))
    assert (found, words) == ("final", "the commit has far more files than are accepted (content.bundle_files)")


def test_a_pack_that_is_too_large_is_not_fetched_to_its_end(server: GitServer, tree: WorkTree, tmp_path: Path) -> None:
    commit = tree.commit(noise=os.urandom(64 << 20))
    found, words = fault(built(tmp_path / "own", server.url, commit, max_bytes=1 << 20))
    assert found == "final"
    assert "twice the bytes of a bundle" in words


def test_nothing_of_the_users_own_git_runs(
    server: GitServer, tree: WorkTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "ran"
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {made}\n")
    (hooks / "post-checkout").chmod(0o755)
    settings = tmp_path / "gitconfig"
    smudge = f'[core]\n hooksPath = {hooks}\n[filter "evil"]\n smudge = touch {made}; cat\n'
    settings.write_text(smudge)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(settings))
    commit = tree.commit(**{"main.py": b"print(1)\n", ".gitattributes": b"*.py filter=evil\n"})
    assert built(tmp_path / "own", server.url, commit) == BuildEnd(found="built")
    assert not made.exists()


def test_a_secret_that_does_not_come_is_reported_so_that_another_host_may_fetch_it(tmp_path: Path) -> None:
    host = new_host(tmp_path / "host", tmp_path / "plane", tmp_path / "house")
    git = GitOrder(
        key="a" * 64,
        url="https://git.example/acme/train",
        commit="c" * 40,
        secret="deploy",
        build_s=60.0,
        max_bytes=1 << 20,
        max_files=100,
        node_id="node",
    )
    order = msgspec.structs.replace(host.order(""), git=git, environment=None)
    with pytest.raises(NotBuiltError, match="did not give the secret deploy"):
        GitMaking(order, host.plane, Progress()).made()
    [end] = host.plane.known()["ends"]
    assert (end["found"], host.plane.known()["builder"]) == ("host", None)
