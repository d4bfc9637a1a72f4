"""The bell: Celery over the broker, by which the control plane wakes a host. It carries no promise.

A ring says "heartbeat now" and names an attempt. Lost, doubled or late rings change nothing but latency, because the
heartbeat's answer lists what the host must do (I20).
"""
