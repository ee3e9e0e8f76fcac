"""Models that are loaded, and what decodes text and sound with them."""
