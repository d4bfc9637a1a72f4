"""Figures of the house (`make bench-house`): how it is built, written and tried, each with its bar."""
