"""All planted faults, in the order of the lines that they break."""

from typing import Final

from planted import Planted
from planted_capacity import CAPACITY

PLANTED: Final[tuple[Planted, ...]] = (*CAPACITY,)
