"""Translates with Bergamot for `firefox_engines.py`, by an interpreter that has the package `bergamot`.

    PYTHON bergamot_server.py MODEL VOCABULARY SHORTLIST|- PRECISION

It needs nothing else, and runs on the Pythons of its wheels (3.7 to 3.10). A line of stdin is
``{"lines": [...], "size": N}``; the answer on stdout has ``texts``, ``seconds`` of the process's CPU and the
highest ``memory`` of the process so far, bytes. So many lines at a time are one text, so that Bergamot has
them all before it makes its batch. Settings are those of Firefox's worker, but for alignments, which it
leaves out; lines are not cut into sentences.
"""

import json
import sys
import time
from importlib import import_module
from importlib.util import find_spec

CONFIG = """
models: [{model}]
vocabs: [{vocabulary}, {vocabulary}]
beam-size: 1
normalize: 1.0
word-penalty: 0
max-length-break: 128
mini-batch-words: 1024
workspace: 128
max-length-factor: 2.0
skip-cost: true
cpu-threads: 0
quiet: true
quiet-translation: true
ssplit-mode: sentence
gemm-precision: {precision}
"""


def extension():
    """Bergamot's compiled module; the package around it asks a server for its list of models first."""
    sys.path[:0] = find_spec("bergamot").submodule_search_locations
    return import_module("_bergamot")


def peak():
    """The highest memory of the process so far, bytes; `ru_maxrss` begins with that of the parent."""
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main(model, vocabulary, shortlist, precision):
    library = extension()
    config = CONFIG.format(model=model, vocabulary=vocabulary, precision=precision)
    if shortlist != "-":
        config += f"shortlist: [{shortlist}, false]\n"
    service = library.Service(library.ServiceConfig(numWorkers=1, cacheSize=0, logLevel="off"))
    loaded = service.modelFromConfig(config)
    options = library.ResponseOptions(
        qualityScores=False, alignment=False, HTML=False, sentenceMappings=False
    )
    for request in map(json.loads, sys.stdin):
        lines, size = request["lines"], request["size"]
        begin = time.process_time()
        found = []
        for first in range(0, len(lines), size):
            text = library.VectorString(["\n".join(lines[first : first + size])])
            (answer,) = service.translate(loaded, text, options)
            found += answer.target.text.split("\n")
        seconds = time.process_time() - begin
        print(json.dumps({"texts": found, "seconds": seconds, "memory": peak()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
