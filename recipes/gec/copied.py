"""Puts into clean sentences what a correction must leave alone: addresses, numbers, code, foreign words."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from random import Random

from nartk.data.text import tokenize

_PARTS = """
    home news blog docs shop mail data test user list item page info help team work photo video music sport
    travel report index login search about project archive article product summary config update review
"""
_ENDINGS = ("com", "org", "net", "edu", "gov", "io", "de", "fr", "co.uk", "info")
_SUFFIXES = ("py", "txt", "pdf", "jpg", "html", "csv", "json", "md", "docx", "zip", "cpp")
_NAMES = """
    anna ben carla david emma felix grace hugo ines jonas kim lena maria nico omar paul rosa sven tara yuki
"""
_UNITS = ("km", "kg", "cm", "mm", "GB", "MB", "MHz", "kWh", "mph")
# Common phrases, written for this list; nothing in them is English.
_FOREIGN = """
    Guten Morgen|Wie geht es dir|Ich weiß es nicht|Das ist mir egal|Alles Gute zum Geburtstag
    Auf Wiedersehen|Das Leben ist schön|Die Zeit heilt alle Wunden|Bonjour tout le monde
    Je ne sais pas|C'est la vie|Bon appétit|Où est la gare|La maison est grande
    Il n'y a pas de quoi|Merci beaucoup|Buenos días|No lo sé|Hasta mañana
    ¿ Dónde está la estación ?|La vida es bella|Mi casa es tu casa|Feliz cumpleaños|Muchas gracias
    Buon giorno|Non lo so|Grazie mille|La dolce vita|Dove è la stazione|Bom dia|Eu não sei
    Muito obrigado|Boa noite|Goede morgen|Ik weet het niet|Dank u wel|Tot ziens|Carpe diem
    Alea iacta est|Errare humanum est|Hyvää päivää|Dzień dobry|Nie wiem|Dobrý den|Tack så mycket
    God morgen|Jag vet inte|Tere hommikust|Merhaba|Teşekkür ederim
"""
_WORDS, _PEOPLE = _PARTS.split(), _NAMES.split()
FOREIGN = tuple(phrase.strip() for line in _FOREIGN.strip().splitlines() for phrase in line.split("|"))


def _word(rng: Random) -> str:
    return rng.choice(_WORDS)


def _digits(rng: Random, count: int) -> str:
    return "".join(rng.choice(string.digits) for _ in range(count))


def address(rng: Random) -> str:
    """The address of a page, or of a person's mail."""
    one, two = _word(rng), _word(rng)
    host = f"{rng.choice([one, one + two, f'{one}-{two}'])}.{rng.choice(_ENDINGS)}"
    if rng.random() < 0.4:
        joint, last = rng.choice(["", ".", "_", "-"]), rng.choice([*_PEOPLE, _digits(rng, 2)])
        return f"{rng.choice(_PEOPLE)}{joint}{last}@{host}"
    path = "".join(f"/{_word(rng)}" for _ in range(rng.randint(0, 3)))
    query = f"?{_word(rng)}={_digits(rng, 3)}" if rng.random() < 0.2 else ""
    return f"{rng.choice(['https://', 'http://', 'https://www.', 'www.'])}{host}{path}{query}"


def number(rng: Random) -> str:
    """A number, date, time, amount or score, with digits and tokens that repeat as they do in real ones."""
    digit = rng.choice(string.digits)
    return rng.choice(
        (
            lambda: _digits(rng, rng.randint(1, 9)),
            lambda: f"{digit} {digit}",
            lambda: digit * rng.randint(2, 6),
            lambda: f"{rng.randint(1, 999)},{_digits(rng, 3)}",
            lambda: f"{rng.randint(0, 99)}.{_digits(rng, rng.randint(1, 4))}",
            lambda: f"{rng.randint(0, 23)}:{rng.randint(0, 59):02}",
            lambda: f"{rng.randint(1, 31)}/{rng.randint(1, 12)}/{rng.randint(1900, 2030)}",
            lambda: f"{rng.randint(1900, 2030)}-{rng.randint(1, 12):02}-{rng.randint(1, 31):02}",
            lambda: f"$ {rng.randint(1, 9999)}",
            lambda: f"{rng.randint(1, 100)} %",
            lambda: f"{rng.randint(1, 500)} {rng.choice(_UNITS)}",
            lambda: f"{rng.randint(1, 9)} - {rng.randint(0, 9)}",
            lambda: f"555-{_digits(rng, 4)}",
            lambda: f"v{rng.randint(0, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}",
        )
    )()


def code(rng: Random) -> str:
    """A name of a file, function, variable, tag or option."""
    one, two = _word(rng), _word(rng)
    return rng.choice(
        (
            f"{one}_{two}",
            f"{one}{two.capitalize()}",
            f"{one}.{two}()",
            f"{one}_{two}.{rng.choice(_SUFFIXES)}",
            f"{one}.{rng.choice(_SUFFIXES)}",
            f"/{one}/{two}",
            f"--{one}",
            f"#{one}",
            f"@{rng.choice(_PEOPLE)}_{two}",
            f"<{one}>",
            f"`{one}_{two}`",
            f"{one.upper()}_{two.upper()}",
            f"0x{rng.randrange(16**4):04x}",
            f"{one}[{rng.randint(0, 9)}]",
        )
    )


def foreign(rng: Random) -> str:
    return f'" {rng.choice(FOREIGN)} "'


MARKS: tuple[Callable[[Random], str], ...] = (address, number, code, foreign)


def with_mark(tokens: Sequence[str], rng: Random) -> list[str]:
    """A copy of a sentence with one mark: in the place of a name or a number, or in brackets at the end."""
    made = rng.choice(MARKS)(rng)
    words = list(tokens)
    spots = [
        i
        for i, word in enumerate(words[:-1])
        if i and (word[0].isupper() or word[0].isdigit()) and word != "I"
    ]
    if spots and rng.random() < 0.6:
        words[rng.choice(spots)] = made
    else:
        words[-1:] = ["(", made, ")", words[-1]] if rng.random() < 0.7 else [":", made, *words[-1:]]
    return tokenize(" ".join(words))
