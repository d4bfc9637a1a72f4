"""The git commit of a job's program: which URLs a host may be asked to fetch, and which of them the operator allows."""

from typing import Any

import pytest
from pydantic import ValidationError

from control.jobs.jobs import readable_by_0_1_0
from muster.domain.job.git_spec import GitSource, is_allowed
from muster.domain.job.request import GIT, request_of_spec
from muster.domain.job.spec import JobSpec, Program
from muster.domain.policy.content import ContentPolicy
from muster.wire.host import HOST_CAPABILITIES

COMMIT = "0a" * 20
URL = "https://git.example.org/team/code.git"


def source(url: str = URL, commit: str = COMMIT, secret: str | None = None) -> GitSource:
    return GitSource(url=url, commit=commit, secret=secret)


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "https://git.example.org:8443/code",
        "ssh://git@git.example.org/team/code.git",
        "ssh://git.example.org:2222/~dana/code",
        "https://[2001:db8::1]/code.git",
        "http://127.0.0.1:8000/code.git",
        "file:///srv/git/code.git",
    ],
)
def test_a_url_of_a_repository(url: str) -> None:
    assert source(url).url == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ext::sh -c touch% /tmp/x", "must begin with https:// or ssh://, and is given to git as nothing else"),
        ("fd::17/code", "and is given to git as nothing else"),
        ("--upload-pack=touch /tmp/x", "and is given to git as nothing else"),
        ("-oProxyCommand=x", "and is given to git as nothing else"),
        ("/srv/git/code", "a folder of this machine uses `--bundle`"),
        ("./code", "a folder of this machine uses `--bundle`"),
        ("git@github.com:team/code.git", "write ssh://git@github.com/team/code.git"),
        ("git://git.example.org/code", "must begin with https:// or ssh://, not git://"),
        ("ftp://git.example.org/code", "not ftp://"),
        ("https://dana:t0ken@git.example.org/code", "no user or password in it, .*name a secret by `secret`"),
        ("https://t0ken@git.example.org/code", "no user or password in it"),
        ("ssh://git:pass@git.example.org/code", "no user or password in it"),
        ("ssh://-oProxyCommand=x/code", "must name a host"),
        ("ssh://-x@git.example.org/code", "a user of letters"),
        ("https://git.example.org/code?x=1", "no `\\?` and no `#`"),
        ("https://git.example.org/code#main", "no `\\?` and no `#`"),
        ("https://git.example.org/", "must name a repository"),
        ("https://git.example.org/a/../b", "must name a repository"),
        ("https://git.example.org/a/%2e%2e/b", "must name a repository"),
        ("https://git.example.org/a b", "no space"),
        ("https://git.example.org/$(touch x)", "no space, quote, backslash or `\\$`"),
        ("https:///code", "must name a host"),
        ("https://git.example.org:x/code", "is no URL"),
        ("file://host/srv/code", "must be file:///PATH"),
        ("file:///srv/../etc", "must be file:///PATH"),
        ("file:///srv/git/%2e%2e/other", "must be file:///PATH"),
        ("file:///srv/git%2F..%2fother", "must be file:///PATH"),
    ],
)
def test_any_other_url_is_refused_with_what_is_accepted(url: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        source(url)


@pytest.mark.parametrize("commit", ["main", "v1.0", COMMIT[:12], COMMIT.upper(), "HEAD", f"{COMMIT}0", "-x", "0a" * 32])
def test_a_commit_is_whole(commit: str) -> None:
    with pytest.raises(ValidationError, match=r"whole commit id of 40 hexadecimal digits|at most 40"):
        source(commit=commit)


@pytest.mark.parametrize("url", ["http://git.example.org/code", "file:///srv/code"])
def test_a_secret_crosses_no_network_in_clear(url: str) -> None:
    with pytest.raises(ValidationError, match="`secret` is sent by https:// or ssh:// alone"):
        source(url, secret="deploy")


@pytest.mark.parametrize(
    ("url", "hosts", "expected"),
    [
        (URL, (), False),
        (URL, ("git.example.org",), True),
        ("https://GIT.Example.org/code", ("git.example.org",), True),
        (URL, ("example.org",), False),
        ("https://git.example.org.evil.com/code", ("git.example.org",), False),
        ("https://git.example.org@evil/code", ("git.example.org",), False),
        ("https://git.example.org:8443/code", ("git.example.org",), False),
        ("https://git.example.org:8443/code", ("git.example.org:8443",), True),
        ("https://git.example.org:443/code", ("git.example.org",), True),
        ("ssh://git@git.example.org/code", ("git.example.org",), True),
        ("ssh://git@git.example.org/code", ("git.example.org:22",), True),
        ("ssh://git@git.example.org:2222/code", ("git.example.org",), False),
        ("http://git.example.org/code", ("git.example.org",), False),
        ("http://git.example.org/code", ("http://git.example.org",), True),
        ("http://127.0.0.1:8000/code", ("http://127.0.0.1:8000",), True),
        ("http://127.0.0.1:8001/code", ("http://127.0.0.1:8000",), False),
        ("https://127.0.0.1:8000/code", ("http://127.0.0.1:8000",), False),
        ("https://[2001:db8::1]/code", ("[2001:db8::1]",), True),
        ("file:///srv/git/code", ("file:///srv/git",), True),
        ("file:///srv/gitother", ("file:///srv/git",), False),
        ("file:///etc", ("git.example.org",), False),
    ],
)
def test_an_operator_names_the_hosts(url: str, hosts: tuple[str, ...], *, expected: bool) -> None:
    assert is_allowed(url, hosts) is expected


@pytest.mark.parametrize(
    "host",
    ["https://github.com", "GitHub.com", "github.com/team", "git@github.com", "file:///srv/", "ftp://x", "", "*"],
)
def test_an_entry_of_the_policy_is_a_host(host: str) -> None:
    with pytest.raises(ValidationError, match=r"must be (HOST|file:///FOLDER)"):
        ContentPolicy(git_hosts=(host,))


def test_the_hosts_of_a_policy() -> None:
    hosts = ("github.com", "git.example.org:8443", "[2001:db8::1]", "http://127.0.0.1:8000", "file:///srv/git")
    assert ContentPolicy(git_hosts=hosts).git_hosts == hosts


def test_paths_of_a_program_are_in_the_commit() -> None:
    given: dict[str, Any] = {"git": {"url": URL, "commit": COMMIT}, "environment": {"lock": "a/uv.lock"}}
    program = Program.model_validate({**given, "script": "src/train.py", "working_dir": "src"})
    assert (program.script, program.working_dir, program.has_bundle) == ("src/train.py", "src", True)
    with pytest.raises(ValidationError, match=r"inside of the bundle's folder"):
        Program.model_validate({**given, "script": "../train.py"})
    with pytest.raises(ValidationError, match="takes `bundle` or `git`, not both"):
        Program.model_validate({**given, "script": "train.py", "bundle": "0a" * 32})


def test_a_job_awaits_its_bundle_until_it_is_made() -> None:
    spec = JobSpec.model_validate({"name": "one", "program": {"script": "a.py", "git": {"url": URL, "commit": COMMIT}}})
    request = request_of_spec(spec)
    assert (request.bundle, request.awaits_bundle) == (None, True)
    assert "bundle" in request.capabilities
    assert GIT in HOST_CAPABILITIES
    assert GIT not in request.capabilities, "only the host that makes the bundle needs git"
    plain = JobSpec.model_validate({"name": "one", "program": {"script": "/a.py"}})
    assert "git" not in readable_by_0_1_0(plain)["program"]
    assert "awaits_bundle" not in readable_by_0_1_0(request_of_spec(plain))


def test_one_key_for_one_commit_by_one_secret() -> None:
    keys = {source().key, source(commit="0b" * 20).key, source(f"{URL}x").key, source(secret="deploy").key}
    assert len(keys) == 4
    assert source().key == source().key
