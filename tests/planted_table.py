"""All planted faults, in the order of the lines that they break."""

from typing import Final

from planted import Planted
from planted_capacity import CAPACITY
from planted_machines import MACHINES
from planted_sessions import SESSIONS
from planted_words import WORDS

PLANTED: Final[tuple[Planted, ...]] = (*CAPACITY, *MACHINES, *SESSIONS, *WORDS)
