"""What DCGM says beside NVML: a dcgm-exporter's metrics, and the results of ``dcgmi diag``. Both are optional."""
