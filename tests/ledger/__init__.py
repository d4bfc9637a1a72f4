"""Tests of the ledger, which is pure: plain data in, accounts, budgets and findings out."""
