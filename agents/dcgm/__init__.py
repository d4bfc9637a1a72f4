"""DCGM's readings in addition to NVML's: a dcgm-exporter's metrics, and the results of ``dcgmi diag``.

Both optional.
"""
