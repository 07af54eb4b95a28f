"""The words of a text that carry its content: folded, lightly stemmed, with names and numbers marked."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

_FUNCTION_WORDS = """
    a about above after again against all also am an and any are as at be because been before being
    below between both but by can could did do does doing down during each few for from further had has
    have having he her here hers him his how i if in into is it its itself just may me might more most
    must my no nor not now of off on once only or other our ours out over own same shall she should so
    some such than that the their theirs them then there these they this those through to too under
    until up upon very was we were what when where which while who whom whose why will with would yes
    you your yours called name named many much kind type el la los las un una de del y en que es por
    para con se su al lo como le les der die das und ist ein eine von zu den im
"""
_DOCUMENT_WORDS = """
    according answer based brief briefly content context describe described document file given idea
    ideas information key main mentioned overview page paragraph passage please point points provided
    question state stated states summarise summarize summary tell text topic topics
"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split()) | frozenset(_DOCUMENT_WORDS.split())
"""Function words of English, a few of German and Spanish, and the words of talk about documents."""

_NUMBERS_TO_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_NUMBERS_TO_TWENTY.split())}
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+(?:['’](?!s\b)[^\W\d_]+)*")
# Scripts written without spaces between words: each character is a term.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_SENTENCE_BREAK = re.compile(r"[.!?:\n\"“(]\s*$")


@dataclass(frozen=True, slots=True)
class Terms:
    """Content of a text: ``words`` in order, and the subset ``exact`` that names or counts something."""

    words: tuple[str, ...]
    exact: frozenset[str]

    @property
    def numbers(self) -> frozenset[str]:
        """The terms that are numbers, written in digits."""
        return frozenset(word for word in self.words if word[0].isdigit())


def content_terms(text: str) -> Terms:
    """Give the content terms of ``text``.

    A number loses its thousands separators and number words up to twenty become digits. A term is exact if
    it has a digit, or is capitalised somewhere other than at the start of a sentence.
    """
    words: list[str] = []
    exact: set[str] = set()
    for raw, before in _raw_words(unicodedata.normalize("NFKC", text)):
        term = _fold(raw)
        if term in STOP_WORDS or (len(term) < 2 and not term.isdigit() and term.isascii()):
            continue
        words.append(term)
        is_name = raw[0].isupper() and before and not _SENTENCE_BREAK.search(before)
        if term[0].isdigit() or is_name:
            exact.add(term)
    return Terms(tuple(words), frozenset(exact))


def asks_of_document(question: str) -> bool:
    """Say whether ``question`` asks of a document as a whole: "What is this document about?", "Summarise it."."""
    words = {word.casefold() for word, _ in _raw_words(question)}
    return not content_terms(question).words and not words.isdisjoint({"about", *_DOCUMENT_WORDS.split()})


def _raw_words(text: str) -> Iterator[tuple[str, str]]:
    """Yield each word with the few characters before it."""
    for match in _WORD.finditer(text):
        word = match.group()
        before = text[max(0, match.start() - 4) : match.start()]
        if _UNSPACED.search(word):
            for char in word:
                yield char, before
        else:
            yield word, before


def _fold(word: str) -> str:
    """Give the comparable form of one word: no case, no accents, no common English ending."""
    if word[0].isdigit():
        return re.sub(r",(?=\d{3})", "", word)
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    folded = "".join(char for char in decomposed if not unicodedata.combining(char)) or word
    if folded in _NUMBER_WORDS:
        return _NUMBER_WORDS[folded]
    if folded in STOP_WORDS or not folded.isascii():
        return folded
    return _stem(folded)


def _stem(word: str) -> str:
    """Cut plural and verb endings; crude, but the same for answer, question and document."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "i"
    if len(word) > 4 and word.endswith("es") and word[-3] in "sxzh":
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and word[-2] not in "su":
        word = word[:-1]
    for ending in ("ing", "ed"):
        if len(word) >= len(ending) + 4 and word.endswith(ending):
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word[-1] == "y":
        return word[:-1] + "i"
    return word[:-1] if len(word) > 4 and word[-1] == "e" else word
