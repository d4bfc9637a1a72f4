"""Programs that compute on GPUs for others, each in a process of its own.

They run under any interpreter with torch and import nothing else.
"""
