"""A site's own prices, from the file that PRICE_BOOK names. Called by `config_checks` and by `compose`."""

import tomllib
from decimal import Decimal
from pathlib import Path

from lcm.model.errors import Fault, Invalid
from lcm.model.prices import SHIPPED, PriceBook, price_file


def read_prices(path: Path | None) -> PriceBook:
    """Give the shipped prices with a file's in their place; raises Invalid."""
    return SHIPPED if path is None else SHIPPED.over(price_file(_toml(path)))


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise Invalid(
            Fault("PRICE_BOOK", f"{path} cannot be read ({error.strerror})", "correct it, or unset it")
        ) from error
    except ValueError as error:
        remedy = 'write for example [hourly.us-east-1] and "m5zn.metal" = 3.9641 below it'
        raise Invalid(Fault("PRICE_BOOK", f"{path} is no TOML ({error})", remedy)) from error
