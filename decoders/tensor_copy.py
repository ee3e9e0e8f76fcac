"""The source as a draft, over tensors: `nartk.decoders.drafters.source_copy` for the loop over tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.tensor_loop import Draft, Drafter, target_words
from nartk.hypothesis import Request
from nartk.rows import steps
from nartk.scorer import Source
from nartk.vocab import Vocab

_UNIQUE_NGRAM = 3  # tokens of the longest suffix that the unique rule tries (Sun et al. 2021, section 3.2)
# Places nearer to the guess that a longer suffix, by one token, is worth. Of 1 to 1000, 3 took the fewest
# passes on 6,000 sentences with learners' errors.
_TOKEN_WORTH = 3
_WORD_MARKS = ("▁", "Ġ")  # of sentencepiece, and of byte-level BPE
_MANY = 1 << 20  # letters, more than any word has


@dataclass(frozen=True)
class CopyState:
    """Where each row stands in the text that it copies.

    Attributes:
        text: [B,S+1] target ids, -1 for what cannot be drafted and after the last.
        sizes: [B] how many of them are the text.
        ahead: [B,4,S+1] as `_ahead` makes it.
        cursor: [B] the place in the text of the last draft's first token.
        seen: [B] output tokens at the last draft.
    """

    text: Tensor
    sizes: Tensor
    ahead: Tensor
    cursor: Tensor
    seen: Tensor


@dataclass(frozen=True)
class SourceCopy(Drafter):
    """Proposes the source from the place on that the output has reached.

    Without `spelling`, the unique rule: the place is after the shortest suffix of the output that occurs once
    in the source. Where there is none, nothing is drafted.

    With it, the aligned rule: if the longest suffix that recurs does so once, the place is after it.
    Otherwise the output's last token is taken for a substitute of the source word that was expected there,
    or for an insertion before it if it is shorter and begins with another letter; the place is the one for
    which this guess and the suffixes together speak most.

    The aligned rule never takes more passes than the unique rule. Say that before some pass the unique rule
    has u tokens, and the aligned rule a >= u. A unique rule without a draft gains one token, and no rule
    gains fewer. With a draft, its suffix occurs once, and so does the suffix with copied tokens after it: if
    a lies among the tokens that it will copy, the aligned rule drafts the rest of them, else it is ahead
    already.

    Args:
        source_to_target: As Seq2SeqScorer has it.
        spelling: [V+1,3] as `spelling` makes it.
        max_draft: Longest draft, tokens; 0: no bound.
    """

    source_to_target: Tensor
    spelling: Tensor | None
    max_draft: int = 0

    def start(self, source: Source, requests: Sequence[Request]) -> CopyState:
        return copy_state(*target_words(source, self.source_to_target), self.spelling)

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        started = lengths > 0
        matched = suffix_lengths(state.text[:, :-1], outputs, lengths)
        found = None
        if self.spelling is None:
            place, found = _unique_place(matched)
        else:
            place, _ = aligned_place(matched, state, self.spelling, outputs, lengths)
        place = place * started
        tokens = following(state.text, place, self.max_draft)
        sizes = torch.full_like(lengths, tokens.shape[1])
        if found is not None:
            sizes = sizes * (found | ~started)
        return Draft(tokens, sizes), replace(state, cursor=place, seen=lengths)


def copy_state(words: Tensor, sizes: Tensor, spelling: Tensor | None) -> CopyState:
    """The state before any output, of texts [B,S], of which sizes [B] count."""
    text = F.pad(words, (0, 1), value=-1)
    ahead = text[:, None] if spelling is None else _ahead(text, sizes, spelling)
    return CopyState(text, sizes, ahead, torch.zeros_like(sizes), torch.zeros_like(sizes))


def following(text: Tensor, place: Tensor, longest: int) -> Tensor:
    """The tokens [B,K] of text [B,S+1] from each place [B] on, at most `longest` where that is not 0.

    The -1 after a text ends a draft, as do words that have no id in the target.
    """
    most = text.shape[1] - 1
    ahead = steps(min(longest, most) if longest else most, text.device)
    return text.gather(1, (place[:, None] + ahead).clamp(max=most))


def _unique_place(matched: Tensor) -> tuple[Tensor, Tensor]:
    """The place [B] after the shortest suffix that occurs once, and whether there is one [B]."""
    place = matched.new_zeros(matched.shape[0])
    found = torch.zeros_like(place, dtype=torch.bool)
    for n in range(_UNIQUE_NGRAM, 0, -1):  # the shortest decides, so it comes last
        recurs = matched >= n
        once = recurs.sum(1) == 1
        place = torch.where(once, recurs.long().argmax(1), place)
        found |= once
    return place, found


def aligned_place(
    matched: Tensor, state: CopyState, spelling: Tensor, outputs: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The place [B] for which suffixes and alignment speak most, of equal ones the first.

    In the second place, how much they speak for each place [B,S+1].

    Args:
        matched: [B,S+1] as `suffix_lengths` gives it.
    """
    grown = lengths - state.seen  # tokens since the last draft: all but the last were copied from it
    # Where in the text the last token stands, if it is a substitute.
    expected = (state.cursor + grown - 1).minimum(state.sizes)
    rows = steps(len(lengths), lengths.device)
    begins, letter, letters = spelling[outputs[rows, lengths - 1]].unbind(1)
    after, here, expected_letter, expected_letters = state.ahead[rows, :, expected].unbind(1)
    # The rest of a word whose beginning was not copied belongs to the source word that was skipped for it.
    guess = torch.where(grown + begins > 1, after, here)
    guess = torch.where((letter != expected_letter) & (letters < expected_letters), expected, guess)
    worth = matched * _TOKEN_WORTH - (steps(matched.shape[1], matched.device) - guess[:, None]).abs()
    longest, places = matched.topk(2, 1)
    first, second = longest.unbind(1)
    return torch.where(first > second, places[:, 0], worth.argmax(1)), worth


@lru_cache(maxsize=8)
def spelling(vocab: Vocab) -> Tensor:
    """How each word is written, and in the last row what is no word: [V+1,3] int64.

    Whether it begins a word of the text, 0 or 1; its first letter, in lower case; the number of its letters,
    and _MANY more if it does not begin a word. Pieces begin a word if they carry the mark of the space before
    it; in a vocabulary without such marks all do.
    """
    marked = any(word.startswith(_WORD_MARKS) for word in vocab.words)
    rows = []
    for word in vocab.words:
        begins = not marked or word.startswith(_WORD_MARKS)
        letters = word[1:] if word.startswith(_WORD_MARKS) else word
        first = ord(letters.lower()[0]) if letters else 0
        rows.append((int(begins), first, len(letters) + (0 if begins else _MANY)))
    return torch.tensor([*rows, (1, 0, 0)], dtype=torch.int64)


def _ahead(source: Tensor, lengths: Tensor, spelling: Tensor) -> Tensor:
    """What the aligned rule asks of each place of source [B,S+1], of which lengths [B] count: [B,4,S+1].

    Where the next word begins: after the place, and after it or there; the first letter of the token there;
    and the letters of the word that begins there, 0 if none does.
    """
    last = source.shape[1] - 1
    begins, letter, letters = spelling[source].unbind(2)  # -1 is the last row: it begins a word of no letters
    places = torch.arange(last + 1, device=source.device)
    here = torch.where(begins > 0, places, last).flip(1).cummin(1).values.flip(1)
    after = F.pad(here[:, 1:], (0, 1), value=last)
    letters = letters % _MANY
    written = letters.cumsum(1)
    whole = (written.gather(1, (after - 1).clamp(min=0)) - written + letters) * begins
    most = lengths[:, None]
    return torch.stack([after.minimum(most), here.minimum(most), letter, whole], 1)


def suffix_lengths(text: Tensor, outputs: Tensor, lengths: Tensor) -> Tensor:
    """How many tokens before each place of the text equal the output's last ones: [B,S+1].

    Args:
        text: [B,S] int64, -1 where nothing matches.
        outputs: [B,T] int64, of which lengths [B] count.
    """
    longest = max(1, min(text.shape[1], outputs.shape[1]))  # a suffix is no longer than the text
    ahead, counted = steps(longest, outputs.device), lengths[:, None]
    newest = outputs.gather(1, (counted - longest + ahead).clamp(min=0))  # [B,L]
    windows = F.pad(text, (longest, 0), value=-1).unfold(1, longest, 1)  # before each place: [B,S+1,L]
    # The last difference is the largest index that has one: many times faster than a cumulative product.
    differs = (windows != newest[:, None]) * (ahead + 1).short()
    # What was taken for the tokens before the output's first may have matched.
    return (longest - differs.amax(2)).minimum(counted)
