"""The draft-and-verify loop, as host code around one call a pass."""
