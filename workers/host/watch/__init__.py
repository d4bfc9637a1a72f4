"""The watch over running attempts on this host: it reads their progress, takes stacks and reports what is overdue."""
