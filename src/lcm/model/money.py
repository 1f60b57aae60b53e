"""Dollars. Exact, so that a month of minutes adds up to the bill."""

from decimal import Decimal
from typing import Annotated

import msgspec

Usd = Annotated[Decimal, msgspec.Meta(description="US dollars", examples=["3.9641"])]
