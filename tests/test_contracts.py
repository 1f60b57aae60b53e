"""The contracts of import-linter and the table of vendors leave nothing out, and name nothing that is not there."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from test_tidy import ROOT, SOURCES, VENDORS, imports, name

EVERYWHERE = {"msgspec", "structlog"}
"""The libraries that any file may use, as far as the contracts let it."""
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def modules_of(contract: dict[str, Any]) -> Iterator[str]:
    """Find the modules of ours that a contract names."""
    inside = [f"{one}." for one in contract.get("containers", ())] or [""]
    yield from contract.get("containers", ())
    layers = re.findall(r"[\w.]+", " ".join(contract.get("layers", ())))
    yield from (start + one for start in inside for one in layers)
    for key in ("source_modules", "forbidden_modules", "ignore_imports"):
        yield from (one for text in contract.get(key, ()) for one in text.split())


NAMED = {one for contract in CONTRACTS for one in modules_of(contract) if one.startswith("lcm")}


def test_every_module_that_a_contract_names_exists() -> None:
    wanted = {one: ROOT / "src" / one.replace(".", "/") for one in NAMED if "*" not in one}
    assert not [one for one, path in wanted.items() if not path.is_dir() and not path.with_suffix(".py").is_file()]


def test_every_package_and_every_room_of_control_is_named() -> None:
    folders = [Path(name(path)).parent for path in SOURCES if path.name == "__init__.py"]
    packages = [
        ".".join(("lcm", *one.parts)) for one in folders if len(one.parts) == 1 or one.parts[:1] == ("control",)
    ]
    assert len(packages) > 15
    assert not [one for one in packages if not any(f"{module}.".startswith(f"{one}.") for module in NAMED)]


def test_no_layer_is_optional() -> None:
    assert not [layer for contract in CONTRACTS for layer in contract.get("layers", ()) if "(" in layer]


def test_every_vendor_has_its_files_and_no_controller_knows_it() -> None:
    imported = {root for path in SOURCES for root in imports(path)}
    assert imported - sys.stdlib_module_names - EVERYWHERE - {"lcm"} <= VENDORS.keys()
    places = {place for allowed in VENDORS.values() for place in allowed}
    assert not {place for place in places if not any(name(path).startswith(place) for path in SOURCES)}
    forbidden = {one for contract in CONTRACTS for one in contract.get("forbidden_modules", ())}
    assert {vendor for vendor in VENDORS if not vendor.startswith("types_")} <= forbidden
