if __name__ != "nartk.models":
    raise ImportError(f"import this package as nartk.models, not as {__name__!r}")
