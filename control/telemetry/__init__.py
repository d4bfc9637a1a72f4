"""Telemetry, server side: reports in, latest state, history, the judge's inbox.

``intake`` gathers reports into group commits (``flush``); ``latest`` and ``history`` read; ``compaction`` and
``retention`` keep it small. Every effect of a report is one that may be repeated: latest state moves forward only,
signals and gaps have keys, and samples join by maximum, so a report that came twice changes nothing (I14).
"""
