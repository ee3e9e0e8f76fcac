"""Searches for the best of several hypotheses over passes."""
