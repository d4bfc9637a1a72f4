"""The pure vocabulary: ids, states and their tables, job specification, policy, principals, errors.

Nothing here does I/O, reads a clock or draws a random number.
"""
