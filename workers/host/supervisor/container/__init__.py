"""A program in a container: its command line, mounts and end."""
