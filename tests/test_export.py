"""`nartk-convert --to`: other libraries load what it writes, and their outputs are greedy search's."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from support import fairseq_host, tiny
from support.fairseq_host import native_checkpoint
from support.parallel_drafters import small_network
from support.transformers_small import vocabulary

from nartk.adapters.hf import import_transformers
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.convert import main
from nartk.errors import MissingDependencyError
from nartk.models.transformer import Transformer
from nartk.protocols.hypothesis import Hypothesis
from nartk.serving.loading import load
from nartk.serving.model import Model
from nartk.vocab import UNKNOWN, Vocab

TEXT = Path(__file__).parent / "support" / "ordinary.txt"
SURE = 1e-3  # nats: where the best word is less sure, another library's rounding may choose another


@pytest.fixture(scope="module")
def transformers() -> Any:
    try:
        return import_transformers()
    except MissingDependencyError:
        pytest.skip("transformers is not installed")


@pytest.fixture(scope="module")
def ctranslate2() -> Any:
    return pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")


@pytest.fixture(scope="module")
def gec() -> Model:
    return load("gec-en", pretokenized=True, guard=False)


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Learners' sentences in Penn Treebank tokens."""
    tokens = load("gec-en").tokenization.tokens
    text = TEXT.read_text(encoding="utf-8").replace("¦", "\n")
    return [*dict.fromkeys(filter(None, map(tokens, text.split("\n"))))]


@pytest.fixture(scope="module")
def wanted(gec: Model, sentences: list[str]) -> list[tuple[str, Hypothesis]]:
    """Some of them with greedy search's outputs, as far as it is sure of these."""
    short = [sentence for sentence in sentences if len(sentence.split()) < 20][:48]
    found = zip(short, gec.decode(short, "greedy", trace=True), strict=True)
    sure = [
        (line, each)
        for line, each in found
        if UNKNOWN not in each.text and all((token.margin or 0) > SURE for token in each.trace or ())
    ]
    assert len(sure) > 36
    return sure


def convert(model: object, folder: Path, *flags: str) -> Path:
    assert main([str(model), "--output", str(folder), "--quiet", *flags]) == 0
    return folder


def tokenizer_of(transformers: Any, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Marian's recommends another package
        return transformers.AutoTokenizer.from_pretrained(folder)


def model_of(transformers: Any, folder: Path, **settings: Any) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, **settings).eval()


def random_folder(
    folder: Path, source: Sequence[str], target: Sequence[str], *, pieces: bool = False, **settings: Any
) -> Path:
    """Writes a random model of such words, or pieces."""
    vocabs = [Vocab.from_words(words) for words in (source, target)]
    tokenizers = [folder / f"{side}.model" for side in ("source", "target")]
    if pieces:
        folder.mkdir()
        vocabs = [tiny.train_pieces(path) for path in tokenizers]
        vocabs[0] = Vocab.from_words(vocabs[0].words[4:-7])  # of which a dictionary may lack some
    sizes: dict[str, Any] = {
        "src_vocab": len(vocabs[0]),
        "tgt_vocab": len(vocabs[1]),
        "share_embeddings": "none",
    }
    sizes |= {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn": 32, "decoder_ffn": 32}
    sizes |= {"encoder_heads": 2, "decoder_heads": 2, "max_source_len": 40, "max_target_len": 24}
    sizes |= {"encoder_norm_first": False, "decoder_norm_first": False}  # as Marian's
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = Transformer(TransformerConfig(**(sizes | settings)))
    with torch.no_grad():
        for weights in network.parameters():
            if weights.dim() > 1:
                weights *= 3.0
    save_checkpoint(
        folder / "model",
        architecture="transformer",
        settings=sizes | settings,
        tensors=network.state_dict(),
        source_vocab=vocabs[0],
        target_vocab=vocabs[1],
        tokenizer=tokenizers[0] if pieces else None,
        target_tokenizer=tokenizers[1] if pieces else None,
        card="# A small model for tests\n",
    )
    return folder / "model"


@pytest.fixture(scope="module")
def hugging_face(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert("gec-en", tmp_path_factory.mktemp("hf") / "made" / "gec-en", "--to", "hf")


def test_their_tokenizer_has_our_ids(
    transformers: Any, hugging_face: Path, gec: Model, sentences: list[str]
) -> None:
    tokenizer = tokenizer_of(transformers, hugging_face)
    odd = ["", " two  spaces ", "</s> <s> <pad> <unk>", "a</s>b", "ﬁ émoji 👩‍👩‍👧 ５", "tab\tand\u2028line"]
    assert len(sentences) > 200
    for line in [*sentences, *odd]:
        assert tokenizer(line)["input_ids"] == [*gec.encode(line)], line


def test_generate_outputs_what_greedy_search_does(
    transformers: Any, hugging_face: Path, wanted: list[tuple[str, Hypothesis]]
) -> None:
    tokenizer, model = tokenizer_of(transformers, hugging_face), model_of(transformers, hugging_face)
    assert model.generation_config.max_length == 257
    given = tokenizer([line for line, _ in wanted], return_tensors="pt", padding=True)
    with torch.inference_mode():
        found = model.generate(**given).tolist()
    texts = tokenizer.batch_decode(found, skip_special_tokens=True)
    pad = tokenizer.pad_token_id
    for (line, best), ids, text in zip(wanted, found, texts, strict=True):
        assert [id for id in ids[1:] if id != pad] == [*best.tokens], line
        assert text == best.text


def test_what_is_written_for_transformers_is_read_again(
    transformers: Any, hugging_face: Path, wanted: list[tuple[str, Hypothesis]], tmp_path: Path
) -> None:
    native = convert(hugging_face, tmp_path / "native")
    for folder in (hugging_face, native):
        for (_, best), found in zip(
            wanted, load(folder).decode([line for line, _ in wanted], "iad"), strict=True
        ):
            assert (found.tokens, found.text) == (best.tokens, best.text)
            assert found.score == pytest.approx(best.score, abs=1e-4)
    again = convert(native, tmp_path / "again", "--to", "hf")
    lines = [line for line, _ in wanted[:8]]
    ids = [tokenizer_of(transformers, each)(lines, padding=True) for each in (hugging_face, again)]
    assert ids[0] == ids[1]
    given = {name: torch.tensor(rows) for name, rows in ids[0].items()}
    with torch.inference_mode():
        outputs = [model_of(transformers, each).generate(**given) for each in (hugging_face, again)]
    assert outputs[0].tolist() == outputs[1].tolist()


def test_their_loss_is_the_score_of_an_output(
    transformers: Any, hugging_face: Path, gec: Model, sentences: list[str]
) -> None:
    tokenizer, model = tokenizer_of(transformers, hugging_face), model_of(transformers, hugging_face)
    lines, targets = sentences[:12], sentences[12:24]
    for line, target, scored in zip(lines, targets, gec.score(lines, targets), strict=True):
        given = tokenizer(line, text_target=target, return_tensors="pt")
        with torch.inference_mode():
            loss = model(**given).loss  # the mean, nats
        assert scored.score == pytest.approx(-float(loss) * given["labels"].shape[1], rel=1e-4)


def test_half_precision_is_the_weights_type(transformers: Any, tmp_path: Path) -> None:
    folder = convert("gec-en", tmp_path / "made", "--to", "hf", "--dtype", "bf16")
    assert model_of(transformers, folder).dtype == torch.bfloat16


WORDS = tiny.WORDS.split()
LINES = ["she go to school .", "", "the  big\tcat", "</s> he<s> they", "xyz home\x1cand"]


@pytest.mark.parametrize("share", ["all", "decoder"])
def test_words_between_spaces(share: str, transformers: Any, tmp_path: Path) -> None:
    ours = load(random_folder(tmp_path, WORDS, WORDS, share_embeddings=share))
    folder = convert(tmp_path / "model", tmp_path / "made", "--to", "hf")
    tokenizer, model = tokenizer_of(transformers, folder), model_of(transformers, folder)
    for line in LINES:
        assert tokenizer(line)["input_ids"] == [*ours.encode(line)]
    for line in filter(None, LINES):
        (best,) = ours.decode([line], "greedy")
        found = model.generate(**tokenizer(line, return_tensors="pt"), max_new_tokens=len(best.tokens))[0]
        assert found.tolist()[1:] == [*best.tokens]
        if UNKNOWN not in best.text:
            assert tokenizer.decode(found, skip_special_tokens=True) == best.text
    again = load(folder)
    for line in LINES:
        assert [*again.encode(line)] == [*ours.encode(line)]
    outputs = (each.decode(LINES, "greedy", max_ratio=9.0) for each in (ours, again))
    for own, back in zip(*outputs, strict=True):
        assert back.tokens == own.tokens
        assert back.score == pytest.approx(own.score, abs=1e-4)
        if UNKNOWN not in own.text:
            assert back.text == own.text


def test_pieces_with_a_dictionary_on_each_side(transformers: Any, tmp_path: Path) -> None:
    ours = load(random_folder(tmp_path / "own", (), (), pieces=True))
    folder = convert(tmp_path / "own" / "model", tmp_path / "made", "--to", "hf")
    tokenizer, model = tokenizer_of(transformers, folder), model_of(transformers, folder)
    assert len(ours.checkpoint.source_vocab) + 7 == len(ours.checkpoint.target_vocab)
    for line in (*tiny.SENTENCES, "Ünknown wörds ."):
        assert tokenizer(line)["input_ids"] == [*ours.encode(line)]
        output = ours.checkpoint.output.encode(line)
        assert tokenizer(text_target=line)["input_ids"] == [*output, tokenizer.eos_token_id]
        (best,) = ours.decode([line], "greedy", max_len=12)
        found = model.generate(**tokenizer(line, return_tensors="pt"), max_new_tokens=len(best.tokens))[0]
        assert found.tolist()[1:] == [*best.tokens]
        if UNKNOWN not in best.text:
            assert tokenizer.decode(found, skip_special_tokens=True) == best.text


def test_where_there_is_no_such_tokenizer_it_is_said(
    transformers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_folder(tmp_path, WORDS[3:], WORDS)
    made = tmp_path / "made"
    assert main([str(tmp_path / "model"), "--to", "hf", "--output", str(made)]) == 0
    assert capsys.readouterr().err == (
        f"nartk: {made}: hf, fp32\n"
        f"nartk: {made}: without a tokenizer, as transformers has none for words between spaces with a "
        "dictionary on each side; ids are the dictionaries'\n"
    )
    assert sorted(os.listdir(made)) == ["config.json", "generation_config.json", "model.safetensors"]
    model_of(transformers, made)


@pytest.mark.parametrize("flags", [[], ["--quantize", "int8"]])
def test_ctranslate2_translates_text(
    flags: list[str], ctranslate2: Any, wanted: list[tuple[str, Hypothesis]], tmp_path: Path
) -> None:
    folder = convert("gec-en", tmp_path / "made", "--to", "ctranslate2", *flags)
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        for side in ("source", "target")
    )
    translator = ctranslate2.Translator(str(folder), compute_type="default", inter_threads=1, intra_threads=1)
    found = translator.translate_batch(
        [[*source.encode(line, out_type=str), "</s>"] for line, _ in wanted], beam_size=1
    )
    same = [
        target.decode(each.hypotheses[0]) == best.text for each, (_, best) in zip(found, wanted, strict=True)
    ]
    assert translator.compute_type.startswith("int8") == bool(flags)
    assert sum(same) > 0.8 * len(same) if flags else all(same)  # int8 is another model


@pytest.mark.parametrize("to", ["hf", "ctranslate2"])
def test_what_is_written_is_read_by_all(to: str, transformers: Any, ctranslate2: Any, tmp_path: Path) -> None:
    folder = convert("gec-en", tmp_path / "made", "--to", to)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    (tmp_path / "file").touch()
    assert modes == {stat.S_IMODE((tmp_path / "file").stat().st_mode)}


def failure(capture: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    code = main([*args])
    return code, capture.readouterr().err


def test_what_would_be_lost_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").touch()
    code, err = failure(capsys, "gec-en", "--to", "hf", "--output", str(tmp_path))
    assert (code, os.listdir(tmp_path)) == (6, ["config.json"])
    assert "holds 'config.json', which would be lost. Fix: name another folder, or remove it yourself." in err


def test_int8_is_not_for_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = str(tmp_path / "made")
    code, err = failure(capsys, "gec-en", "--to", "hf", "--quantize", "int8", "--output", made)
    assert (code, err.partition("] ")[2]) == (
        2,
        "--to hf with --quantize int8, which transformers does not store. "
        "Fix: choose --to ctranslate2, or leave --quantize out.\n",
    )


@pytest.mark.parametrize("to", ["hf", "ctranslate2"])
def test_a_model_that_is_not_autoregressive_is_refused(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = small_network("ctc", 12, 1)
    save_checkpoint(
        tmp_path / "model",
        architecture="ctc",
        settings=dict(vars(network.config)),
        tensors=network.state_dict(),
        source_vocab=vocabulary(12),
        target_vocab=vocabulary(12),
        card="# A small model for tests\n",
    )
    code, err = failure(capsys, str(tmp_path / "model"), "--to", to, "--output", str(tmp_path / "made"))
    assert (code, err) == (
        5,
        f"nartk: error[E403 UnsupportedCheckpoint] {tmp_path / 'model'}: a 'ctc' model, of which {to} has "
        "none. Fix: name an autoregressive model.\n",
    )


def test_a_checkpoint_of_fairseq_goes_all_the_way(transformers: Any, tmp_path: Path) -> None:
    checkpoint, dictionary = native_checkpoint(tmp_path / "a.pt"), tmp_path / "dict.txt"
    dictionary.write_text("".join(f"w{i} 1\n" for i in range(fairseq_host.WORDS - 4)))
    folder = convert(checkpoint, tmp_path / "made", "--dict", str(dictionary), "--to", "hf")
    assert tokenizer_of(transformers, folder)("w3 w0")["input_ids"] == [7, 4, 2]
    assert model_of(transformers, folder).config.vocab_size == fairseq_host.WORDS
