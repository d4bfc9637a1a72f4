"""What computes on GPUs for others: a process of its own, under any interpreter with torch, with torch alone."""
