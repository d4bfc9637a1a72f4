"""The host beneath the GPUs, by the kernel's own files: ports, network, pressure, disks, clock, driver."""
