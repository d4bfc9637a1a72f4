"""Telemetry of schema 1 as release 0.1.0 wrote it: a report, and the stored block, chunk and newest readings of it.

These bytes were made by that release's own code. Both GPUs are in each; the driver had lost the second one.
"""

from base64 import b64decode
from typing import Final

VALUES: Final = (
    *(61.0, 70.0, None, 409.5, 700.0, 12345.5, 1980.0, 2619.0, 0.0, 97.0, 52.0, 65536.0, 1.0),
    *(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 16.0, 3.0, 18.0, 0.0, 0.0, 0.0),
)
"""Of the first GPU, in the order of schema 1."""
GPUS: Final = ("GPU-alpha-0", "GPU-alpha-1")
REPORTED_MS: Final = 1_790_000_000_000
REPORT: Final = (
    b'{"protocol":1,"boot_id":"boot-1","seq":16,"at_ms":1790000000000,"schema":1,"is_history":false,"gpus":['
    b'{"uuid":"GPU-alpha-0","values":[61.0,70.0,null,409.5,700.0,12345.5,1980.0,2619.0,0.0,97.0,52.0,65536.0,1.0,'
    b"0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,5.0,16.0,3.0,18.0,0.0,0.0,0.0]},"
    b'{"uuid":"GPU-alpha-1","values":[null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,'
    b"null,null,null,null,null,null,null,null,null,null,null,null,null,null]}],"
    b'"node":{"cpu_percent":null,"memory_used_mib":null,"num_gpus":2,"agent_version":"0.1.0","driver_version":"",'
    b'"spool_reports":0,"spool_bytes":0},"events":[],"gaps":[]}'
)
BLOCK: Final = b64decode(
    "AgAXAAAAR1BVLWFscGhhLTAfR1BVLWFscGhhLTEAAHRCAACMQgAAwH8AwMxDAAAvRADmQEYAgPdEALAjRQAAAAAAAMJCAABQQgAAgEcAAIA/AAAA"
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACgQAAAgEEAAEBAAACQQQAAAAAAAAAAAAAAAAAAwH8AAMB/AADAfwAAwH8AAMB/AADA"
    "fwAAwH8AAMB/AADAfwAAwH8AAMB/AADAfwAAwH8AAMB/AADAfwAAwH8AAMB/AADAfwAAwH8AAMB/AADAfwAAwH8AAMB/AADAfwAAwH8AAMB/AADA"
    "fwAAwH8AAMB/"
)
CHUNK: Final = b64decode(
    "eAFjYChxYmDoAeID9QwHzjgzMOi7MDxzcGNo+O7CsEHZlQEMDgHlA4C4wR2I7SFihMgFDkC1jgwMDkB6ApBGAACtlQ9TeAFjYDhQz0BnDAAidyQk"
)
"""An hour with the block five seconds after its beginning."""
CHUNK_SECONDS: Final = bytes.fromhex("0500")
CHUNK_ENDS: Final = (69, 84)
NEWEST_READINGS: Final = b64decode(
    "AAIAHUBOgAAAAAAAf/gAAAAAAABAUYAAAAAAAH/4AAAAAAAAf/gAAAAAAAB/+AAAAAAAAEB5mAAAAAAAf/gAAAAAAABAheAAAAAAAH/4AAAAAAAA"
    "QMgcwAAAAAB/+AAAAAAAAECe8AAAAAAAf/gAAAAAAABApHYAAAAAAH/4AAAAAAAAAAAAAAAAAAB/+AAAAAAAAEBYQAAAAAAAf/gAAAAAAABASgAA"
    "AAAAAH/4AAAAAAAAQPAAAAAAAAB/+AAAAAAAAD/wAAAAAAAAf/gAAAAAAAAAAAAAAAAAAH/4AAAAAAAAAAAAAAAAAAB/+AAAAAAAAAAAAAAAAAAA"
    "f/gAAAAAAAAAAAAAAAAAAH/4AAAAAAAAAAAAAAAAAAB/+AAAAAAAAAAAAAAAAAAAf/gAAAAAAAAAAAAAAAAAAH/4AAAAAAAAAAAAAAAAAAB/+AAA"
    "AAAAAAAAAAAAAAAAf/gAAAAAAABAFAAAAAAAAH/4AAAAAAAAQDAAAAAAAAB/+AAAAAAAAEAIAAAAAAAAf/gAAAAAAABAMgAAAAAAAH/4AAAAAAAA"
    "AAAAAAAAAAB/+AAAAAAAAAAAAAAAAAAAf/gAAAAAAAAAAAAAAAAAAH/4AAAAAAAAAAFHUFUtYWxwaGEtMB9HUFUtYWxwaGEtMQ=="
)
