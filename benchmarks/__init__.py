"""The measured bars: each in a module of its own; `make bench` runs them and writes `results/main.json`."""
