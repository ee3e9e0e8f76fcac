if __name__ != "nartk.data":
    raise ImportError(f"import this package as nartk.data, not as {__name__!r}")
