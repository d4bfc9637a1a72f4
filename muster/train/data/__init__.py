"""Datasets and which samples a rank sees."""
