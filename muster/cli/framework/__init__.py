"""Parts that every command shares: the command tree, output, options, exit codes, profiles."""
