"""`--task nartk_translation`: trains on the distilled corpus, or on it and a share of the raw one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fairseq_host import require_fairseq

from nartk.errors import UsageError, VocabMismatchError

require_fairseq()

WORDS = [f"w{i}" for i in range(40)]
RAW = [(f"w{i} w{i + 1}", f"w{i + 2}") for i in range(10)]
DISTILLED = [(f"w{i} w{i + 1}", f"w{30 + i} w{i}") for i in range(8)]


def binarise(
    folder: Path, pairs: list[tuple[str, str]], split: str = "train", words: list[str] = WORDS
) -> Path:
    """Writes what fairseq-preprocess writes for pairs of sentences."""
    import torch
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

    folder.mkdir(exist_ok=True)
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    for side, language in enumerate(("en", "de")):
        dictionary.save(str(folder / f"dict.{language}.txt"))
        prefix = folder / f"{split}.en-de.{language}"
        builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
        for pair in pairs:
            builder.add_item(torch.IntTensor(dictionary.encode_line(pair[side], add_if_not_exist=False)))
        builder.finalize(f"{prefix}.idx")
    return folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    binarise(tmp_path / "raw", [("w1", "w2")], "valid")
    return binarise(tmp_path / "raw", RAW)


@pytest.fixture
def distilled(tmp_path: Path) -> Path:
    return binarise(tmp_path / "distilled", DISTILLED)


def make_task(data: Path, **settings: Any) -> Any:
    from fairseq.tasks import TASK_REGISTRY

    from nartk.tasks.translation import DistilledTranslationConfig

    cfg = DistilledTranslationConfig(data=str(data), source_lang="en", target_lang="de", **settings)
    cfg.train_subset, cfg.dataset_impl, cfg.required_seq_len_multiple = "train", None, 1
    return TASK_REGISTRY["nartk_translation"].setup_task(cfg)


def pairs(task: Any, split: str) -> list[tuple[str, str]]:
    """The sentences of a split, as batches hold them."""
    from fairseq.utils import strip_pad

    task.load_dataset(split)
    data = task.dataset(split)
    found = {}
    for indices in data.batch_by_size(data.ordered_indices(), max_tokens=12):
        batch = data.collater([data[i] for i in indices])
        rows = zip(batch["id"].tolist(), batch["net_input"]["src_tokens"], batch["target"], strict=True)
        for i, source, target in rows:
            found[i] = tuple(
                task.src_dict.string(strip_pad(side, task.src_dict.pad())) for side in (source, target)
            )
    assert sorted(found) == list(range(len(data)))
    return [found[i] for i in range(len(data))]


def test_without_a_distilled_corpus_it_is_fairseqs_translation(raw: Path) -> None:
    assert pairs(make_task(raw), "train") == RAW


def test_the_distilled_corpus_takes_the_place_of_the_raw_one(raw: Path, distilled: Path) -> None:
    task = make_task(raw, distilled=str(distilled))
    assert pairs(task, "train") == DISTILLED
    assert pairs(task, "valid") == [("w1", "w2")]


def test_validation_data_are_distilled_where_asked(raw: Path, distilled: Path) -> None:
    task = make_task(raw, distilled=str(distilled), distilled_valid=True, raw_share=0.5)
    with pytest.raises(UsageError, match="distilled has no split 'valid'"):
        task.load_dataset("valid")
    binarise(distilled, DISTILLED[:3], "valid")
    assert pairs(task, "valid") == DISTILLED[:3]  # nothing raw among them
    assert pairs(task, "train")[: len(DISTILLED)] == DISTILLED


@pytest.mark.parametrize(("share", "extra"), [(0.2, 2), (0.5, 8), (0.75, 24), (0.9, 72)])
def test_a_share_of_raw_pairs_is_added(share: float, extra: int, raw: Path, distilled: Path) -> None:
    found = pairs(make_task(raw, distilled=str(distilled), raw_share=share), "train")
    assert found[: len(DISTILLED)] == DISTILLED
    added = Counter(found[len(DISTILLED) :])
    assert added.total() == extra
    assert extra / len(found) == pytest.approx(share)
    assert set(added) <= set(RAW)
    counts = [added[pair] for pair in RAW]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"raw_share": 1.0}, r"--raw-share is 1.0, not in \[0, 1\)"),
        ({"raw_share": 0.5, "distilled": None}, "--raw-share without --distilled"),
        ({"distilled_valid": True, "distilled": None}, "--distilled-valid without --distilled"),
        ({"distilled": "nowhere"}, "no dict.en.txt"),
        ({"raw_share": 0.5, "num_batch_buckets": 2}, "--num-batch-buckets"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str, raw: Path, distilled: Path) -> None:
    with pytest.raises(UsageError, match=message):
        make_task(raw, **{"distilled": str(distilled), **settings})


def test_another_dictionary_is_refused(raw: Path, tmp_path: Path) -> None:
    other = binarise(tmp_path / "other", DISTILLED, words=WORDS[::-1])
    with pytest.raises(VocabMismatchError, match="differs from the dictionary of the raw data"):
        make_task(raw, distilled=str(other))
