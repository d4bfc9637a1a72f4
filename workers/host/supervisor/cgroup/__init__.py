"""One attempt's processes as a control group: limits, devices, counts."""
