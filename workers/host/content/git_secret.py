"""How git gets the secret of a repository: as a descriptor of this process in memory, and no file, word or variable.

Git's credential helper, and ssh, open it by its path in /proc, which only this user reaches.
"""

import os
from typing import Final

from workers.host.content.git_faults import GitFaultError

_USER: Final = b"git"
"""For a token alone: GitHub, GitLab, Gitea and Bitbucket look at the token, and take any user with it."""
_SSH: Final = (
    "ssh -F /dev/null -o BatchMode=yes -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes"
    " -o UserKnownHostsFile=/dev/null -o PasswordAuthentication=no -o ConnectTimeout=30"
)
_REDACTED: Final = "[secret]"


class SecretAccess:
    """``config``, ``environment``: what git gets. It holds the secret open for as long as it lives."""

    def __init__(self, scheme: str, secret: bytes | None, name: str | None) -> None:
        """Open it for git. Raises GitFaultError: the secret is none for this kind of URL."""
        self.config, self.environment = "[credential]\n    helper =\n", dict[str, str]()
        self._words: tuple[str, ...] = ()
        if scheme == "ssh":
            self.environment = {"GIT_SSH_VARIANT": "ssh", "GIT_SSH_COMMAND": _ssh_command(secret, name)}
        elif secret is not None:
            self._open_token(secret, name)

    def _open_token(self, secret: bytes, name: str | None) -> None:
        token = secret.strip()
        user, is_pair, password = token.partition(b":")
        if not is_pair:
            user, password = _USER, token
        if not user or not password or any(byte < 32 or byte == 127 for byte in token):
            raise GitFaultError("final", f"the secret {name} is no token in one line, and no USER:TOKEN")
        path = _in_memory(b"username=%b\npassword=%b\n" % (user, password))
        self.config += f"""    helper = "!f() {{ test \\"$1\\" = get && cat {path}; }}; f"\n"""
        self._words = tuple(word.decode("utf-8", "replace") for word in {token, password})

    def redacted(self, text: str) -> str:
        """Return the text without the secret."""
        for word in self._words:
            text = text.replace(word, _REDACTED)
        return text


def _ssh_command(secret: bytes | None, name: str | None) -> str:
    # A job's user has no account, which ssh asks for. In a name space of its own it has root's, and no right of root's.
    as_root = "" if _has_account() else "unshare --user --map-root-user "
    if secret is None:
        return f"{as_root}{_SSH} -o IdentityFile=none"
    if b"PRIVATE KEY-----" not in secret:
        raise GitFaultError("final", f"the secret {name} is no private key, which an ssh:// URL needs")
    key = _in_memory(secret.replace(b"\r", b"").strip() + b"\n")
    return f"{as_root}{_SSH} -i {key}"


def _has_account() -> bool:
    import pwd  # noqa: PLC0415  # of ssh alone

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _in_memory(content: bytes) -> str:
    """Return the path of what only this process holds, and this user reads."""
    descriptor = os.memfd_create("secret")
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, content)
    return f"/proc/{os.getpid()}/fd/{descriptor}"
