"""The kernel log of a host, from /dev/kmsg or the journal."""
