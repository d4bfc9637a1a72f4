"""Tests of environments by lock file, with wheels that are made here."""
