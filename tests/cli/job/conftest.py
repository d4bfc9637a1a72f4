"""Fixtures of several files of tests."""

from tests.cli.job.served_folders import served, served_once
from tests.cli.job.served_outputs import outputs, outputs_once

__all__ = ["outputs", "outputs_once", "served", "served_once"]
