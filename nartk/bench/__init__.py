"""Measures strategies and other libraries against each other: each engine in a process of its own."""
