"""Texts that edit their source, and what the aligned rule drafts of them, by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

EOS = 2
Pair = tuple[list[int], list[int]]  # source words, and output words without eos
Rule = Callable[[list[int], list[int], dict[str, int]], int | None]


def edited(rng: random.Random, words: Sequence[int]) -> list[int]:
    """`words` with some of them replaced, dropped, repeated, swapped, or new ones put in."""
    rate = rng.choice([0.02, 0.1, 0.3])
    out: list[int] = []
    vocabulary = [*sorted(set(words)), 4]
    for i, word in enumerate(words):
        kind = rng.random() / rate
        if kind >= 1:
            out.append(word)
        elif kind < 0.3:
            out.append(rng.choice(vocabulary))
        elif kind < 0.5:
            out += [rng.choice(vocabulary), word]
        elif kind < 0.7:
            continue
        elif kind < 0.8:
            out += words[max(0, i - rng.randint(0, 4)) : i + 1]  # says an n-gram again
        elif kind < 0.9 and i + 1 < len(words):
            out += [words[i + 1], word]
        else:
            out += rng.choices(vocabulary, k=rng.randint(1, 4))
    return out[:60]


def repetitive_pair(rng: random.Random, words: int) -> Pair:
    """A text in which n-grams recur, and its edition."""
    used = rng.sample(range(4, words), rng.randint(2, min(16, words - 4)))
    grams = [rng.choices(used, k=rng.randint(1, 5)) for _ in range(rng.randint(1, 6))]
    source: list[int] = []
    while len(source) < rng.randint(1, 40):
        source += rng.choice(grams) if rng.random() < 0.6 else [rng.choice(used)]
    return source, edited(rng, source)


def spelled(rng: random.Random, words: int) -> list[str]:
    """A vocabulary of random spellings; in half of the cases of pieces, of which some begin a word."""
    marks = rng.choice([("",), ("▁", ""), ("▁", "▁", "")])
    letters = ["".join(rng.choices("abAB,", k=rng.randint(1, 4))) for _ in range(words - 4)]
    return ["<s>", "<pad>", "</s>", "<unk>", *(rng.choice(marks) + word for word in letters)]


def aligned_rule(words: Sequence[str]) -> Rule:
    rule = weighed_rule(words)
    return lambda source, output, memory: rule(source, output, memory)[0]


def weighed_rule(words: Sequence[str]) -> Callable[[list[int], list[int], dict[str, int]], tuple[int, int]]:
    """The place of the aligned rule, and what suffix and alignment are worth there."""
    marked = any(word.startswith("▁") for word in words)

    def begins(token: int) -> bool:
        return not marked or words[token].startswith("▁")

    def letters(token: int) -> str:
        return words[token].removeprefix("▁")

    def rule(source: list[int], output: list[int], memory: dict[str, int]) -> tuple[int, int]:
        def suffix(place: int) -> int:
            n = 0
            while n < min(place, len(output)) and source[place - 1 - n] == output[-1 - n]:
                n += 1
            return n

        def next_word(place: int) -> int:
            while place < len(source) and not begins(source[place]):
                place += 1
            return min(place, len(source))

        here = memory["cursor"] + memory["accepted"]
        token = output[-1]
        guess = next_word(here + 1) if memory["accepted"] or begins(token) else next_word(here)
        if here < len(source) and begins(token) and begins(source[here]):
            word = "".join(letters(t) for t in source[here : next_word(here + 1)])
            other = letters(token)[0].lower() != letters(source[here])[0].lower()
            if other and len(letters(token)) < len(word):
                guess = here
        suffixes = [suffix(place) for place in range(len(source) + 1)]
        worth = [3 * n - abs(place - guess) for place, n in enumerate(suffixes)]
        once = max(suffixes) > 0 and suffixes.count(max(suffixes)) == 1
        best = suffixes.index(max(suffixes)) if once else worth.index(max(worth))
        return best, worth[best]

    return rule


def passes_by_hand(pair: Pair, rule: Rule, *, max_draft: int = 0, max_len: int = 64) -> tuple[int, int, int]:
    """Passes, drafted and accepted tokens of draft and verify, as the papers tell it."""
    source, output = pair[0], [*pair[1], EOS][:max_len]
    done, passes, drafted, accepted = 0, 0, 0, 0
    memory = {"cursor": 0, "accepted": 0}
    while done < len(output):
        place = 0 if done == 0 else rule(source, output[:done], memory)
        draft = [] if place is None else source[place:]
        draft = draft[: max_draft if max_draft else None][: max_len - done - 1]
        stands = 0
        while stands < len(draft) and done + stands < len(output) and draft[stands] == output[done + stands]:
            stands += 1
        passes, drafted, accepted = passes + 1, drafted + len(draft), accepted + stands
        memory = {"cursor": 0 if place is None else place, "accepted": stands}
        done += stands + 1
    return passes, drafted, accepted


def ids(words: dict[str, int], text: str) -> list[int]:
    return [words.setdefault(word, 4 + len(words)) for word in text.split()]
