"""The computing part of a burn-in: a process of its own, under any interpreter with torch, without other packages.

It uses the standard library and torch alone.
"""
