"""The error generator: English text made wrong in the manner, and at the rates, of learners."""
