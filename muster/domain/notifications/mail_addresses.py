"""Mail addresses as routes and settings take them."""

import re
from typing import Final

_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
    r"@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
"""As browsers check an address (HTML, "valid e-mail address"), without dots next to each other or at an end."""
MOST_ADDRESS: Final = 254


def is_mail_address(text: str) -> bool:
    """Return whether the text is one mail address."""
    return len(text) <= MOST_ADDRESS and _ADDRESS.fullmatch(text) is not None
