"""Texts that name the places of another machine, with this one's put in."""

import re
from collections.abc import Mapping


def put_in(text: str, places: Mapping[str, str]) -> str:
    """Each name in ``places`` by what it is here, in one pass, so that nothing is put in twice.

    A name counts where it stands by itself: ``/etc/muster`` in ``/etc/muster/tls.pem``, not in ``/etc/muster2``.
    """
    if not places:
        return text
    words = "|".join(re.escape(word) for word in sorted(places, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])(?:{words})(?!\w)", lambda match: places[match[0]], text)
