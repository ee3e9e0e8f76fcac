"""A server over HTTP: models whose batches all requests share, in the dialects that clients speak."""
