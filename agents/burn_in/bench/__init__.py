"""What computes: runs in a process of its own, under any interpreter with torch, on the standard library and torch."""
