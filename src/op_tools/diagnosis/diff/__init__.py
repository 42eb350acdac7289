"""Comparison of two recorded runs, call by call."""
