"""`--task nartk_translation`: fairseq's translation that can learn from a distilled corpus."""

# No `from __future__ import annotations` here: fairseq reads the options' types from the class.
import os
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from fairseq.data import BaseWrapperDataset, ConcatDataset, LanguagePairDataset
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask, load_langpair_dataset

from nartk.architectures.settings import setting
from nartk.errors import UsageError, VocabMismatchError


@dataclass
class DistilledTranslationConfig(TranslationConfig):
    """fairseq's options of `translation`, and where the distilled corpus is."""

    # fairseq knows no other way to write this type.
    distilled: Optional[str] = setting(  # noqa: UP045
        None,
        "binarised distilled corpus (nartk-distill, then nartk-preprocess with the dictionaries "
        "of the raw data): it is trained on in place of the raw training data; validation data stay raw "
        "without --distilled-valid",
    )
    distilled_valid: bool = setting(
        False,
        "validate too on the splits of --distilled: on what the teacher says, not on the raw "
        "references; what tells most of a drafter (accept_len), which meets such prefixes alone",
    )
    raw_share: float = setting(
        0.0,
        "share of raw pairs among those trained on with --distilled, in [0, 1): so many raw "
        "pairs, evenly spread or several times each, are added to all of the distilled ones",
    )


class Rows(BaseWrapperDataset):
    """Some rows of a data set of token rows, in a given order; a row may occur several times."""

    def __init__(self, dataset: Any, rows: np.ndarray) -> None:
        super().__init__(dataset)
        self.rows = rows

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.rows[index]]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> np.ndarray:
        sizes: np.ndarray = self.dataset.sizes[self.rows]
        return sizes

    def num_tokens(self, index: int) -> int:
        return int(self.dataset.sizes[self.rows[index]])

    def size(self, index: int) -> int:
        return self.num_tokens(index)

    def prefetch(self, indices: Any) -> None:
        self.dataset.prefetch([self.rows[i] for i in indices])


def raw_rows(raw: int, distilled: int, share: float) -> np.ndarray:
    """Selects those of `raw` pairs to add to `distilled` ones to make up `share` of all: int64, ascending.

    Spread evenly: each pair occurs as often as any other, or once more.
    """
    wanted = round(distilled * share / (1.0 - share))
    return np.arange(wanted, dtype=np.int64) * raw // max(1, wanted)


@register_task("nartk_translation", dataclass=DistilledTranslationConfig)
class DistilledTranslation(TranslationTask):
    """Trains on `--distilled DIR`, or on it and a share of the raw data."""

    cfg: DistilledTranslationConfig

    @classmethod
    def setup_task(cls, cfg: DistilledTranslationConfig, **options: Any) -> "DistilledTranslation":
        """Reads the dictionaries.

        Raises:
            UsageError: `raw_share` is out of its bounds, or there is no distilled corpus beside it or
                `distilled_valid`.
            VocabMismatchError: The distilled corpus has other dictionaries than the raw one.
        """
        if not 0.0 <= cfg.raw_share < 1.0:
            raise UsageError(f"--raw-share is {cfg.raw_share}, not in [0, 1)", fix="0: distilled pairs alone")
        if cfg.raw_share and cfg.distilled is None:
            raise UsageError("--raw-share without --distilled", fix="add --distilled DIR")
        if cfg.distilled_valid and cfg.distilled is None:
            raise UsageError("--distilled-valid without --distilled", fix="add --distilled DIR")
        if cfg.raw_share and cfg.num_batch_buckets:
            raise UsageError("--raw-share with --num-batch-buckets", fix="leave one of them out")
        task: DistilledTranslation = super().setup_task(cfg, **options)
        if cfg.distilled is not None:
            for language, ours in ((cfg.source_lang, task.src_dict), (cfg.target_lang, task.tgt_dict)):
                path = os.path.join(cfg.distilled, f"dict.{language}.txt")
                if not os.path.isfile(path):
                    raise UsageError(
                        f"--distilled {cfg.distilled}: no dict.{language}.txt",
                        fix="give a folder that nartk-preprocess wrote for the same languages",
                    )
                if task.load_dictionary(path).symbols != ours.symbols:
                    raise VocabMismatchError(
                        f"{path} differs from the dictionary of the raw data",
                        fix="preprocess the distilled text with --srcdict and --tgtdict of the raw data",
                    )
        return task

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **options: Any) -> None:
        """Loads a split; of the training split, the distilled corpus in place of the raw one or with it.

        Raises:
            UsageError: The distilled corpus has no such split.
        """
        trains = split == self.cfg.train_subset
        if self.cfg.distilled is None or not (trains or self.cfg.distilled_valid):
            super().load_dataset(split, epoch=epoch, combine=combine, **options)
            return
        try:
            distilled = self._distilled(split, combine)
        except FileNotFoundError:
            raise UsageError(
                f"--distilled {self.cfg.distilled} has no split {split!r}",
                fix="nartk-distill its sources, and nartk-preprocess them into the same folder"
                + ("" if trains else ", or leave out --distilled-valid"),
            ) from None
        if trains and self.cfg.raw_share:
            super().load_dataset(split, epoch=epoch, combine=combine, **options)
            distilled = self._mixed(distilled, self.datasets[split])
        self.datasets[split] = distilled

    def _distilled(self, split: str, combine: bool) -> LanguagePairDataset:
        cfg = self.cfg
        return load_langpair_dataset(
            cfg.distilled,
            split,
            cfg.source_lang,
            self.src_dict,
            cfg.target_lang,
            self.tgt_dict,
            combine=combine,
            dataset_impl=cfg.dataset_impl,
            upsample_primary=cfg.upsample_primary,
            left_pad_source=cfg.left_pad_source,
            left_pad_target=cfg.left_pad_target,
            max_source_positions=cfg.max_source_positions,
            max_target_positions=cfg.max_target_positions,
            truncate_source=cfg.truncate_source,
            num_buckets=cfg.num_batch_buckets,
            pad_to_multiple=cfg.required_seq_len_multiple,
        )

    def _mixed(self, distilled: LanguagePairDataset, raw: LanguagePairDataset) -> LanguagePairDataset:
        rows = raw_rows(len(raw), len(distilled), self.cfg.raw_share)
        source, target = (
            ConcatDataset([ours, Rows(theirs, rows)])
            for ours, theirs in ((distilled.src, raw.src), (distilled.tgt, raw.tgt))
        )
        return LanguagePairDataset(
            source,
            source.sizes,
            self.src_dict,
            target,
            target.sizes,
            self.tgt_dict,
            left_pad_source=self.cfg.left_pad_source,
            left_pad_target=self.cfg.left_pad_target,
            pad_to_multiple=self.cfg.required_seq_len_multiple,
        )
