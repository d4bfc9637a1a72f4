"""Rules of the broker's access list: a host reads its own queue, the control plane writes to all, and no more.

The commands are the ones that Celery's client for Redis needs. ``docker-compose.yml`` and ``docs/install.md`` write the
same rules. Redis before 7.2 refuses a rule that names ``client|setinfo``, which clients send without need: it is not
among them.
"""

from typing import Final

from workers.wakeup.celery_app import KEY_PREFIX, host_queue

_OF_EACH: Final = ("client|setname", "hello", "info", "ping", "select", "multi", "exec")
_OF_HOSTS: Final = (
    *(
        "brpop",
        "llen",
        "sadd",
        "smembers",
        "srem",
        "hset",
        "hget",
        "hdel",
        "zadd",
        "zrem",
        "zrange",
        "zrevrangebyscore",
    ),
    *("lpush", "rpush", "watch", "unwatch", "get", "set", "evalsha", "script|load", "pexpire", "del"),
)
_OF_THE_CONTROL_PLANE: Final = ("lpush", "llen", "sadd", "smembers")


def host_rules(node_id: str = "") -> list[str]:
    """Return the rules of one host's user: its queue, its binding, and what it has not acknowledged yet.

    Without ``node_id``: of a user that simulated hosts share.
    """
    queue = host_queue(node_id)
    binding = f"{KEY_PREFIX}_kombu.binding*.{queue}" + ("" if node_id else "*")
    return _rules(_OF_HOSTS, (f"{KEY_PREFIX}{queue}*", binding))


def control_rules() -> list[str]:
    """Return the rules of the control plane's user."""
    return _rules(_OF_THE_CONTROL_PLANE, (f"{KEY_PREFIX}host.*", f"{KEY_PREFIX}_kombu.binding*.host.*"))


def _rules(commands: tuple[str, ...], keys: tuple[str, ...]) -> list[str]:
    allowed = [f"+{command}" for command in (*_OF_EACH, *commands)]
    return ["resetkeys", *(f"~{key}" for key in keys), "resetchannels", "-@all", *allowed]
