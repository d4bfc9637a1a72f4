"""Forensics of a hang: reports and dumps of all hosts in, one verdict out."""
