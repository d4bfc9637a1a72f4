"""``muster job submit --git``: a commit in place of the work folder, and each wrong option before anything is sent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from control.policy.policies import ACTIVATE, store_policy
from muster.cli.framework.exits import Exit
from muster.domain.policy.content import ContentPolicy
from muster.domain.policy.document import Policy
from tests.cli.command import Command
from tests.cli.job.served_folders import Served, newest, submit
from tests.fleet_factory import OPERATOR
from tests.workers.host.content.git_server import GitServer, WorkTree, git_server

pytestmark = pytest.mark.timeout(400)
COMMIT = "0a" * 20


@pytest.fixture
def server(tmp_path: Path, served: Served) -> Iterator[GitServer]:
    (tmp_path / "served").mkdir()
    with git_server(tmp_path / "served") as git:
        allow(served, git.origin)
        yield git


def allow(served: Served, *hosts: str) -> None:
    with served.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(content=ContentPolicy(git_hosts=hosts)), reason="repositories of this test")


def test_a_branch_is_the_commit_that_it_is_now(
    muster: Command, served: Served, server: GitServer, tmp_path: Path
) -> None:
    tree = WorkTree.new(tmp_path / "tree", server.root)
    commit = tree.commit(**{"src__train.py": b"print()\n"})
    done = submit(muster, served, "--git", server.url, "--commit", "main", "--workdir", "src", "src/train.py", "--x")
    assert done.returncode == Exit.OK, done.stderr
    assert f"main is commit {commit}" in done.stderr
    program = newest(served)
    assert program["git"] == {"url": server.url, "commit": commit, "secret": None}
    assert (program["script"], program["working_dir"], program["args"]) == ("src/train.py", "src", ["--x"])
    assert program.get("bundle") is None
    tree.git("tag", "--annotate", "--message=one", "v1")
    tree.git("push", "--quiet", str(tree.bare), "v1")
    tree.commit(more=b"more\n")
    assert submit(muster, served, "--git", server.url, "--commit", "v1", "src/train.py").returncode == Exit.OK
    assert newest(served)["git"]["commit"] == commit, "of an annotated tag the commit"
    tree.git("push", "--quiet", str(tree.bare), "HEAD:refs/heads/later/main", "HEAD:refs/heads/later/absent")
    tree.git("push", "--quiet", "--force", str(tree.bare), f"{commit}:refs/heads/main")
    assert submit(muster, served, "--git", server.url, "--commit", "main", "src/train.py").returncode == Exit.OK
    assert newest(served)["git"]["commit"] == commit, "and not that of later/main"
    absent = submit(muster, served, "--git", server.url, "--commit", "absent", "src/train.py")
    assert absent.returncode == Exit.USAGE
    assert f"{server.url} has no branch or tag absent" in " ".join(absent.stderr.split())


def test_a_whole_commit_is_sent_as_it_is(muster: Command, served: Served, server: GitServer) -> None:
    (muster.folder / "requirements.txt").write_text("of this folder, and not of the commit")
    words = ("--git", server.url, "--commit", COMMIT.upper(), "--lock", "locks/requirements.txt")
    done = submit(muster, served, *words, "--command", "./run.sh", "1")
    assert done.returncode == Exit.OK, done.stderr
    program = newest(served)
    assert (program["argv"], program["git"]["commit"]) == (["./run.sh", "1"], COMMIT)
    assert program["environment"]["lock"] == "locks/requirements.txt"
    assert server.requested == []


def test_a_job_file_names_a_commit(muster: Command, served: Served, server: GitServer) -> None:
    git = f"git: {{url: '{server.url}', commit: {COMMIT}}}"
    (muster.folder / "job.yaml").write_text(f"name: one\nprogram:\n  script: src/train.py\n  {git}\n")
    done = submit(muster, served, "-f", "job.yaml")
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert (newest(served)["script"], newest(served)["git"]["commit"]) == ("src/train.py", COMMIT)
    other = "0b" * 20
    done = submit(muster, served, "-f", "job.yaml", "--git", server.url, "--commit", other)
    assert done.returncode == Exit.OK, done.stderr
    assert (newest(served)["script"], newest(served)["git"]["commit"]) == ("src/train.py", other)
    done = submit(muster, served, "-f", "job.yaml", "train.py")
    assert done.returncode == Exit.OK, done.stderr
    assert newest(served).get("git") is None, "a program of here brings its folder"
    assert newest(served)["bundle"] is not None


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--git", "https://git.example.org/code"), "name the commit too"),
        (("--commit", COMMIT), "it is of a repository: give --git too"),
        (("--git-secret", "deploy"), "it is of a repository: give --git too"),
        (("--git", "ext::sh -c x", "--commit", "main"), "must begin with https:// or ssh://"),
        (("--git", "git@github.com:a/b.git", "--commit", "main"), "write ssh://git@github.com/a/b.git"),
        (("--git", "https://t0ken@github.com/a/b", "--commit", "main"), "no user or password in it"),
        (("--git", "https://github.com/a/b", "--commit", COMMIT, "--bundle", "."), "leave --bundle out"),
        (("--git", "https://github.com/a/b", "--commit", COMMIT), "`content.git_hosts` of the policy"),
    ],
)
def test_what_cannot_work_is_refused(
    muster: Command, served: Served, server: GitServer, words: tuple[str, ...], refusal: str
) -> None:
    done = submit(muster, served, *words, "train.py")
    assert done.returncode in {Exit.USAGE, Exit.INVALID}, done.stderr
    assert refusal in " ".join(done.stderr.replace("│", " ").split())
    assert server.requested == []


def test_a_secret_that_is_not_there_is_named(muster: Command, served: Served, server: GitServer) -> None:
    done = submit(muster, served, "--git", server.url, "--commit", COMMIT, "--git-secret", "deploy", "train.py")
    assert done.returncode == Exit.INVALID, done.stderr
    assert "there is no secret deploy" in " ".join(done.stderr.split())
