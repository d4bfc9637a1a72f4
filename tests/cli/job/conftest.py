"""Fixtures of several files of tests."""

from tests.cli.job.served_folders import served, served_once

__all__ = ["served", "served_once"]
