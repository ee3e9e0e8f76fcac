"""Word lists of the noise generator: what learners mix up, drop, add, join and misspell."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache


def _words(text: str) -> list[str]:
    """Words separated by white space."""
    return text.split()


ARTICLES = ("a", "an", "the")
# What stands where each preposition belongs.
PREPOSITIONS: dict[str, tuple[str, ...]] = {
    "in": ("on", "at", "in", "of", "for", "into"),
    "on": ("in", "at", "about", "of", "to"),
    "at": ("in", "on", "to"),
    "of": ("for", "from", "in", "about", "on"),
    "for": ("to", "of", "in", "from", "during"),
    "to": ("for", "in", "at", "of", "with"),
    "with": ("by", "to", "of", "in"),
    "by": ("with", "from", "in", "for"),
    "from": ("of", "in", "by", "since"),
    "about": ("of", "on", "for"),
    "into": ("in", "to"),
    "during": ("in", "on", "for"),
    "since": ("from", "for"),
    "through": ("by", "in", "thru"),
    "between": ("among", "in"),
    "among": ("between", "in"),
    "over": ("on", "above"),
    "until": ("to", "till"),
    "without": ("with no", "with out"),
    "within": ("in", "with in"),
    "toward": ("to", "for"),
    "towards": ("to", "for"),
    "against": ("to", "with"),
    "like": ("as",),
    "as": ("like",),
    "after": ("before", "in"),
    "before": ("after", "ago"),
}
# What stands where each pronoun belongs.
PRONOUNS: dict[str, tuple[str, ...]] = {
    "i": ("me", "my"),
    "me": ("I", "my"),
    "my": ("me", "mine", "his"),
    "he": ("him", "she", "his", "they"),
    "him": ("he", "his", "her"),
    "his": ("he", "him", "her", "their", "its"),
    "she": ("her", "he"),
    "her": ("she", "his", "hers"),
    "it": ("they", "its", "he", "this", "them"),
    "its": ("it", "their", "his"),
    "they": ("them", "it", "he", "their"),
    "them": ("they", "it", "their", "him"),
    "their": ("they", "them", "his", "its", "theirs"),
    "we": ("us", "our"),
    "us": ("we", "our"),
    "our": ("we", "us", "ours"),
    "your": ("you", "yours"),
    "you": ("your", "we"),
    "himself": ("hisself", "him", "itself"),
    "themselves": ("themself", "theirselves", "them"),
    "myself": ("me", "my self"),
    "yourself": ("you", "your self"),
    "itself": ("it", "himself", "it self"),
}
# Words confused with each other; an underscore is a space.
_CONFUSED = """
there their they're|then than|to too|your you're|its it's|whose who's|affect effect|loose lose|accept except
of off|weather whether|quiet quite|advice advise|live life|leave live|know now no|were where|this these
that those|much many|less fewer|few little|other another others|by buy|hear here|new knew|write right
form from|become became|think thing|way why|some same|want won't|everyday every_day|may_be maybe
although despite|so such|very too so|has as|an and|also too|make do|say tell|speak talk|learn teach
look see watch|which who that|borrow lend|rise raise|past passed|peace piece|principal principle
breath breathe|cloth clothes|desert dessert|personal personnel|through though threw|thought though
whole hole|wear where|week weak|wait weight|would will|can could|must should|people peoples|person people
especially specially|sometimes sometime|beside besides|later latter|almost most|hard hardly|near nearly
late lately|each every|every all|any some|have get|big great|high tall|fun funny|interesting interested
boring bored|exciting excited|surprising surprised|tiring tired|job work|travel trip|price prize|cost coast
like as|if whether|while during|until since|yet already|just only|but and|or and|win earn|choose chose
lead led|safe save|believe belief|proof prove|dead died death|success succeed successful
different difference|important importance|easy easily|good well|bad badly|real really|better best
economic economical|where when|what that|is are|was were|he's his|on one|its his
"""
# What learners write for a correct word, one way only.
_WRITTEN_FOR = """
knowledge knowledges|information informations|advice advices|equipment equipments|furniture furnitures
homework homeworks|research researches|traffic traffics|money moneys|nowadays now_a_days nowaday
therefore there_for|however how_ever|whatever what_ever|moreover more_over|furthermore further_more
another an_other|children childs childrens|people persons peoples|men mans|women womans|women woman
feet foots|teeth tooths|themselves theirselves|news new|better more_better|easier more_easy
easier more_easier|best most_best|worse more_bad worst|bigger more_big|cheaper more_cheap|happier more_happy
faster more_fast|higher more_high|most the_most|because becouse cause becuase|because_of because
instead instead_of|according according_with|such_as such|as like|every_time everytime|used use
supposed suppose|me I|than then|you u|are r|and &|for 4|your ur|really realy|okay ok|want wanna|going gonna
than that|one a|a one|many a_lot_of much|lots a_lots|lot lots|also as_well|too to|until till
everyone every_one|everything every_thing|something some_thing|someone some_one|cannot can_not
anyone any_one|anything any_thing
"""


def _word_sets(text: str) -> list[list[str]]:
    """Groups separated by ``|``, words by spaces."""
    groups = text.replace("\n", "|").split("|")
    return [[word.replace("_", " ") for word in group.split()] for group in groups if group]


@lru_cache(maxsize=1)
def confusions() -> dict[str, tuple[str, ...]]:
    """Maps a lower-cased word to the words that learners write in its place."""
    table: dict[str, dict[str, None]] = defaultdict(dict)
    for group in _word_sets(_CONFUSED):
        for word in group:
            table[word].update(dict.fromkeys(other for other in group if other != word))
    for word, *others in _word_sets(_WRITTEN_FOR):
        table[word].update(dict.fromkeys(others))
    return {word: tuple(others) for word, others in table.items()}


# Prepositions put between a verb and its object: "discuss about it".
INSERTED_AFTER_VERB = ("to", "about", "in", "on", "of", "with", "for", "at")
# Function words that go missing.
DROPPED = frozenset(
    _words("""
    to be is are am was were been being have has had do does did will would can could should and but or
    because if that which who when it they he she we i you there so not as than also more very all them
    """)
)
# Function words that come in unbidden.
EXTRAS = tuple(
    _words("""
    the of to is are that be more very also so and it in a they have for will can do
    """)
)
# Word pairs written as one.
JOINED = frozenset(
    pair.replace("_", " ")
    for pair in _words("""
    a_lot in_order may_be at_least every_day each_other in_fact of_course for_example as_well no_one
    every_time any_more all_ways such_as in_to on_to can_not in_front some_times all_right a_long
    in_stead up_to
    """)
)
# Parts of the compounds that are written as two words.
PARTS = frozenset(
    _words("""
    any body every some no one thing where time times how ever what when who self him her my your them
    selves our it in to on with out side day night house hold work room mate book home week end up
    stairs down class foot ball back ground news paper be cause all though ways over come take look
    grand father mother child hood world wide under stand stood water air port plane life style basket
    birth good bye more fore there after noon an other further never less how al ready most together
    self other not
    """)
)
_KEY_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
# Letters beside each letter on the keyboard.
NEIGHBOURS = {
    letter: "".join(
        row[column]
        for row in _KEY_ROWS[max(0, at - 1) : at + 2]
        for column in (i - 1, i, i + 1)
        if 0 <= column < len(row)
    ).replace(letter, "")
    for at, keys in enumerate(_KEY_ROWS)
    for i, letter in enumerate(keys)
}
# What is right, and how it is written by ear.
_BY_EAR = tuple(
    pair.split(">")
    for pair in _words("""
    ie>ei ei>ie ph>f gh>g ght>gt tion>sion sion>tion ssion>tion ance>ence ence>ance ant>ent ent>ant
    able>ible ible>able ary>ery ery>ary ally>aly ully>uly ful>full wh>w kn>n wr>r ck>k c>k c>s s>c k>c
    qu>q ce>se se>ce ea>ee ee>ea ea>e ou>o oo>o ai>a ay>ey ei>e ie>i ie>y au>o ow>ou er>ar ar>er or>er
    er>or re>er ue>u le>el el>le al>el mb>m bt>t st>s sc>s xc>x exp>ex ch>sh sh>ch th>t g>j j>g y>i i>y
    z>s s>z v>w dg>g tch>ch e>i i>e a>e e>a o>u u>o a>o o>a ui>i eou>ou iou>ou ous>us ic>ick ely>ly
    ment>mant cc>c mm>m nn>n ss>s ll>l tt>t pp>p ff>f rr>r ng>n nt>n ly>lly l>ll m>mm s>ss t>tt r>rr
    n>nn c>cc p>pp u>o v>b b>v r>l l>r h> d>t t>d
    """)
)
# The same by first letter.
BY_EAR_OF: dict[str, list[tuple[str, str]]] = defaultdict(list)
for _right, _written in _BY_EAR:
    BY_EAR_OF[_right[0]].append((_right, _written))
# What stands where each form agrees with its subject.
AGREEMENT: dict[str, tuple[str, ...]] = {
    "is": ("are", "be"),
    "are": ("is", "be"),
    "was": ("were",),
    "were": ("was",),
    "am": ("is", "are"),
    "'m": ("is",),
    "has": ("have",),
    "have": ("has",),
    "does": ("do",),
    "do": ("does",),
}
