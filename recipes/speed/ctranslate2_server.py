"""Serves a folder of CTranslate2 over HTTP for `servers.py`, as servers with this library do.

    python ctranslate2_server.py FOLDER PORT DTYPE [BATCH_SIZE]

FOLDER is what `nartk-convert --to ctranslate2` writes. Without a batch size each request is a call of
`translate_batch` in a thread of FastAPI's, and they wait for each other within the library, as in
LibreTranslate. With one, requests that come within 5 ms, or while others are translated, share a call.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import sentencepiece
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from nartk.adapters.ctranslate2 import import_ctranslate2

WAIT = 0.005  # seconds until a batch that is not full begins
LONGEST = 256  # tokens of an output


class Request(BaseModel):
    q: str


class Library:
    """A model with its words, one thread."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.source, self.target = (
            sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm")) for side in ("source", "target")
        )
        self.translator = import_ctranslate2().Translator(
            str(folder), compute_type=dtype, inter_threads=1, intra_threads=1
        )

    def __call__(self, lines: Sequence[str]) -> list[str]:
        sources = [[*self.source.encode(line, out_type=str), "</s>"] for line in lines]
        found = self.translator.translate_batch(sources, beam_size=1, max_decoding_length=LONGEST)
        return [self.target.decode(each.hypotheses[0]) for each in found]


class Batches:
    """Calls a function with the lines of several requests."""

    def __init__(self, translate: Library, size: int) -> None:
        self.translate, self.size = translate, size
        self.waiting: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()

    async def __call__(self, line: str) -> str:
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait((line, found))
        return await found

    async def work(self) -> None:
        while True:
            batch = [await self.waiting.get()]
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT):
                    while len(batch) < self.size:
                        batch.append(await self.waiting.get())
            texts = await asyncio.to_thread(self.translate, [line for line, _ in batch])
            for (_, found), text in zip(batch, texts, strict=True):
                found.set_result(text)


def application(translate: Library, size: int | None) -> FastAPI:
    if size is None:
        app = FastAPI()

        @app.post("/translate")
        def alone(request: Request) -> dict[str, Any]:
            return {"translatedText": translate([request.q])[0]}

        return app

    batches = Batches(translate, size)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(batches.work())
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/translate")
    async def together(request: Request) -> dict[str, Any]:
        return {"translatedText": await batches(request.q)}

    return app


def main(folder: str, port: str, dtype: str, size: str | None = None) -> None:
    app = application(Library(Path(folder), dtype), None if size is None else int(size))
    uvicorn.run(app, port=int(port), log_level="error", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
