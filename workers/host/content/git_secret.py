"""How git gets the secret of a repository: as a descriptor in memory, and by no file, word or variable.

Git passes the descriptor on to its credential helper, which prints it, and to the shell that starts ssh. Ssh closes
what it inherits, and opens the shell's.
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
    """``config``, ``environment``, ``descriptors``: what git gets."""

    def __init__(self, scheme: str, secret: bytes | None, name: str | None) -> None:
        """Open it for git. Raises GitFaultError: the secret is none for this kind of URL."""
        self.config, self.environment = "[credential]\n    helper =\n", dict[str, str]()
        self.descriptors: tuple[int, ...] = ()
        self._words: tuple[str, ...] = ()
        if scheme == "ssh":
            self._open_key(secret, name)
        elif secret is not None:
            self._open_token(secret, name)

    def _open_token(self, secret: bytes, name: str | None) -> None:
        token = secret.strip()
        user, is_pair, password = token.partition(b":")
        if not is_pair:
            user, password = _USER, token
        if not user or not password or any(byte < 32 or byte == 127 for byte in token):
            raise GitFaultError("final", f"the secret {name} is no token in one line, and no USER:TOKEN")
        self.descriptors = (_in_memory(b"username=%b\npassword=%b\n" % (user, password)),)
        path = f"/proc/self/fd/{self.descriptors[0]}"
        self.config += f"""    helper = "!f() {{ test \\"$1\\" = get && cat {path}; }}; f"\n"""
        self._words = tuple(word.decode("utf-8", "replace") for word in {token, password})

    def _open_key(self, secret: bytes | None, name: str | None) -> None:
        identity = "-o IdentityFile=none"
        if secret is not None:
            if b"PRIVATE KEY-----" not in secret:
                raise GitFaultError("final", f"the secret {name} is no private key, which an ssh:// URL needs")
            self.descriptors = (_in_memory(secret.replace(b"\r", b"").strip() + b"\n"),)
            identity = f"-i /proc/$$/fd/{self.descriptors[0]}"
        # A job's user has no account, which ssh asks for. In a name space of its own it has root's, without its rights.
        around = "" if _has_account() else "unshare --user --map-root-user "
        # The exit keeps the shell, and with it the descriptor, until ssh has ended.
        command = f"""{around}sh -c '{_SSH} {identity} "$@"; exit $?' ssh"""
        self.environment = {"GIT_SSH_VARIANT": "ssh", "GIT_SSH_COMMAND": command}

    def redacted(self, text: str) -> str:
        """Return the text without the secret."""
        for word in self._words:
            text = text.replace(word, _REDACTED)
        return text


def _has_account() -> bool:
    import pwd  # noqa: PLC0415  # of ssh alone

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _in_memory(content: bytes) -> int:
    """Return a descriptor of the content, which this user alone reads."""
    descriptor = os.memfd_create("secret")
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, content)
    return descriptor
