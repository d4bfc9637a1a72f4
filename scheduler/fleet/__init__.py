"""The fleet as arrays: topology, layout, counts by domain, and planned maintenance."""
