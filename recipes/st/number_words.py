"""The words of numbers from 1 to 9999 in German and French, as fsdd_numbers writes them."""

from __future__ import annotations

from collections.abc import Callable

_TO_NINETEEN = {
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn "
    "sechzehn siebzehn achtzehn neunzehn",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize "
    "dix-sept dix-huit dix-neuf",
}
_TENS = {
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "fr": "vingt trente quarante cinquante soixante soixante quatre-vingt quatre-vingt",
}
_GERMAN, _FRENCH = (words.split() for words in _TO_NINETEEN.values())
_GERMAN_TENS, _FRENCH_TENS = (words.split() for words in _TENS.values())


def german(number: int) -> str:
    """The words, those of compounds apart: ``zwei und vierzig``."""
    if number >= 1000:
        return _joined(_one(number // 1000), "tausend", number % 1000, german)
    if number >= 100:
        return _joined(_one(number // 100), "hundert", number % 100, german)
    if number < 20:
        return _GERMAN[number]
    tens = _GERMAN_TENS[number // 10 - 2]
    return f"{_one(number % 10)} und {tens}" if number % 10 else tens


def french(number: int) -> str:
    """The words, with hyphens below a hundred: ``quatre-vingt-deux``."""
    if number >= 1000:
        counted = "" if number < 2000 else french(number // 1000)
        return _joined(counted, "mille", number % 1000, french)
    if number >= 100:
        counted = "" if number < 200 else french(number // 100)
        ends = "s" if counted and number % 100 == 0 else ""
        return _joined(counted, f"cent{ends}", number % 100, french)
    if number < 20:
        return _FRENCH[number]
    tens, rest = _FRENCH_TENS[number // 10 - 2], number % (20 if number >= 60 else 10)
    if rest == 0:
        return f"{tens}s" if number == 80 else tens
    # 71 is sixty and eleven, 81 and 91 are without `et`.
    return f"{tens} et {_FRENCH[rest]}" if rest in (1, 11) and number < 80 else f"{tens}-{_FRENCH[rest]}"


WORDS: dict[str, Callable[[int], str]] = {"de": german, "fr": french}


def _one(digit: int) -> str:
    """A digit in front of what it counts."""
    return "ein" if digit == 1 else _GERMAN[digit]


def _joined(counted: str, unit: str, rest: int, words: Callable[[int], str]) -> str:
    """The words of so many units, and of what is left."""
    return " ".join(part for part in (counted, unit, words(rest) if rest else "") if part)
