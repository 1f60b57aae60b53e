"""Data that ships inside the package: JSON files in the folder `data` of a package, decoded to types."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_data_file(package: str, name: str, shape: type[T]) -> T:
    """Decode a data file of a package. Raises AssertionError for a bad one, with its name and the place in it."""
    from importlib.resources import files  # noqa: PLC0415 - most commands read no data, and it takes milliseconds

    try:
        return msgspec.json.decode(files(package).joinpath("data", name).read_bytes(), type=shape)
    except msgspec.DecodeError as error:
        raise AssertionError(f"{package}/data/{name}: {error}") from error
