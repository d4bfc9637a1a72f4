"""The server's end of GPU hosts: enrolment, tokens, heartbeats, reports, drains and probes."""
