if __name__ != "nartk.decoders":
    raise ImportError(f"import this package as nartk.decoders, not as {__name__!r}")
