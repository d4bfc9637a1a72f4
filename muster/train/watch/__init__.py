"""The sensor in a rank: it reports the rank's progress and, on request, its stack, without a call in the program."""
