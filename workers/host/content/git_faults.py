"""What a failed git means, by its words: whose fault it is, and what to do."""

import re
from typing import Final, Literal

Found = Literal["final", "passing", "host"]
_MOST_WORDS: Final = 300
_WHOLE: Final = re.compile(r"unadvertised object|does not support shallow|allow-tip-sha1")
_ABSENT: Final = re.compile(r"not our ref|couldn't find remote ref|no such remote ref|unadvertised object")
_DENIED: Final = re.compile(
    r"Authentication failed|could not read (?:Username|Password)|terminal prompts disabled|Permission denied[ ,]"
    r"|returned error: 40[13]|invalid credentials",
    re.IGNORECASE,
)
_NOT_FOUND: Final = re.compile(
    r"returned error: 404|repository '.*' not found|does not appear to be a git repository|not valid: is this a git",
    re.IGNORECASE,
)
_MOVED: Final = re.compile(r"returned error: 30\d|redirect", re.IGNORECASE)
_HOST_KEY: Final = re.compile(r"Host key verification failed|host key is known", re.IGNORECASE)
_NO_USER: Final = re.compile(r"No user exists for uid|unshare(?: failed)?: ")
_BAD_KEY: Final = re.compile(r"error in libcrypto|invalid format|bad permissions|incorrect passphrase", re.IGNORECASE)
_NO_SPACE: Final = re.compile(r"No space left on device|Disk quota exceeded")


class GitFaultError(Exception):
    """``found``: final: the tenant has to change something; passing: a later try may succeed; host: this host is to
    blame. ``text``: git's own words.
    """

    def __init__(self, found: Found, words: str, text: str = "") -> None:
        super().__init__(words)
        self.found: Found = found
        self.text = text


def needs_whole_fetch(text: str) -> bool:
    """Return whether a repository may have the commit and just does not give it alone."""
    return _WHOLE.search(text) is not None


def fault_of(text: str, url: str, secret: str | None) -> GitFaultError:
    """Return the fault of a git that failed, by its words."""
    if _NO_SPACE.search(text):
        return GitFaultError("host", "this host's disk is full", text)
    if _HOST_KEY.search(text):
        words = f"this host does not know the key of {url}: its operator adds that to /etc/ssh/ssh_known_hosts"
        return GitFaultError("host", words, text)
    if _NO_USER.search(text):
        words = "ssh does not run as a user of a job on this host: use an https:// URL with a token"
        return GitFaultError("host", words, text)
    if _ABSENT.search(text):
        return GitFaultError("final", f"the repository {url} has no such commit: was it pushed?", text)
    if _BAD_KEY.search(text):
        words = f"the secret {secret} is no private key that ssh can use without a passphrase"
        return GitFaultError("final", words, text)
    if _DENIED.search(text):
        return GitFaultError("final", _denied(url, secret), text)
    if _MOVED.search(text):
        return GitFaultError("final", f"{url} leads to another address, which is not followed: name that one", text)
    if _NOT_FOUND.search(text):
        why = "it may need a secret (`--git-secret`)" if secret is None else f"or the secret {secret} does not open it"
        return GitFaultError("final", f"there is no repository {url}; {why}", text)
    return GitFaultError("passing", f"{url} could not be read: {_last_line(text)}", text)


def _denied(url: str, secret: str | None) -> str:
    if secret is None:
        words = f"{url} is not there, or asks for a token or key"
        return f"{words}: set one by `muster secret set`, and name it by `--git-secret`"
    return f"{url} does not accept the secret {secret}: rotate it by `muster secret rotate {secret}`"


def _last_line(text: str) -> str:
    """Return the line that says most: git's own fault, or the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    faults = [line for line in lines if line.startswith(("ssh:", "fatal:", "error:"))]
    return (faults or lines or ["git printed nothing"])[0][:_MOST_WORDS]
