"""The version of nartk."""

__version__ = "0.1.0"
