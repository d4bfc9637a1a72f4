"""Detectors of clocks, heat and power while a GPU works or idles."""
