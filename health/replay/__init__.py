"""Judgement played again over recorded reports."""
