"""Mail addresses as routes and settings take them."""

import re
from typing import Final

_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?")
"""As browsers check an address (HTML, "valid e-mail address"), with a bound: no spaces, commas or line ends."""


def is_mail_address(text: str) -> bool:
    """Return whether the text is one mail address."""
    return _ADDRESS.fullmatch(text) is not None
