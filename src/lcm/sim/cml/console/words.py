"""Commands of a console as rows of words, found by unambiguous beginnings. Used by `sim.cml.console.ios`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import Final

_TOKEN: Final = re.compile(r"\S+")
ADDRESS, WORD, LINE = "A.B.C.D", "WORD", "LINE"
"""Places in a command: an IPv4 address, one word, and all the rest of the line."""
PLACES: Final = {ADDRESS, WORD, LINE}


@dataclass(frozen=True, slots=True)
class ConsoleCommand:
    """One command: its words, in which modes there is one, what it does, and its line in the help."""

    words: tuple[str, ...]
    modes: frozenset[str]
    help: str
    run: Callable[..., str]


class WrongCommand(Exception):
    """A line that is no command; `column` is where that shows, or -1 when something is missing at its end."""

    def __init__(self, message: str, column: int = -1) -> None:
        super().__init__(message)
        self.column = column


def find_command(commands: Sequence[ConsoleCommand], line: str) -> tuple[ConsoleCommand, list[str]]:
    """Return the command of a line, and what stands in its places. Raise WrongCommand when there is none."""
    fitting, given = list(commands), list[str]()
    for number, found in enumerate(_TOKEN.finditer(line)):
        token = found.group()
        choices = [one for one in fitting if number < len(one.words) and _fits(one.words[number], token)]
        fitting = _prefer_exact(choices, number, token)
        if not fitting:
            raise WrongCommand("% Invalid input detected at '^' marker.", found.start())
        words = {one.words[number] for one in fitting}
        if len(words) > 1:
            raise WrongCommand(f'% Ambiguous command:  "{line.strip()}"')
        if fitting[0].words[number] == LINE:
            return fitting[0], [*given, line[found.start() :].strip()]
        if fitting[0].words[number] in PLACES:
            given.append(token)
    length = len(_TOKEN.findall(line))
    whole = [one for one in fitting if len(one.words) == length]
    if not whole:
        raise WrongCommand("% Incomplete command.")
    return whole[0], given


def list_next_words(commands: Sequence[ConsoleCommand], line: str) -> list[tuple[str, str]]:
    """Return the words that may come next, each with its help; those that the unfinished last word may become."""
    tokens = _TOKEN.findall(line)
    unfinished = tokens.pop() if tokens and not line[-1:].isspace() else ""
    fitting = list(commands)
    for number, token in enumerate(tokens):
        choices = [one for one in fitting if number < len(one.words) and _fits(one.words[number], token)]
        fitting = _prefer_exact(choices, number, token)
    at, found = len(tokens), dict[str, str]()
    for one in fitting:
        if at < len(one.words) and (not unfinished or _fits(one.words[at], unfinished)):
            found.setdefault(one.words[at], one.help)
        elif at == len(one.words):
            found.setdefault("<cr>", "")
    return sorted(found.items())


def _prefer_exact(choices: list[ConsoleCommand], number: int, token: str) -> list[ConsoleCommand]:
    exact = [one for one in choices if one.words[number] == token.lower()]
    named = [one for one in choices if one.words[number] not in PLACES]
    return exact or named or choices


def _fits(word: str, token: str) -> bool:
    if word == ADDRESS:
        return is_address(token)
    return word in PLACES or word.startswith(token.lower())


def is_address(text: str) -> bool:
    """Return whether a text is an IPv4 address."""
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True
