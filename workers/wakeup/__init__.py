"""Wake-ups: Celery over the broker, by which the control plane wakes a host. Nothing depends on their delivery.

A wake-up means "heartbeat now" and names an attempt. Lost, doubled or late ones change nothing but latency, because
the heartbeat's answer lists what the host must do (I20).
"""
