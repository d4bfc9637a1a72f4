"""Which hosts are this machine itself, to which nothing crosses a network."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether a host, by name or address, is this machine: ``localhost``, 127.0.0.0/8 or ::1.

    Other names are not, whatever they resolve to.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
