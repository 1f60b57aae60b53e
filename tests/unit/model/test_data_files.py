"""The data files that ship with the package: each is read whole, and holds together."""

import json
from pathlib import Path

import msgspec
import pytest

from harness import suite
from lcm.api.openapi.description import BODIES, ExampleFile
from lcm.model.base.data_files import read_data_file
from lcm.model.money.prices import Hardware, PriceFile, parse_price_file
from lcm.model.topology.lab import TopologyReport
from lcm.model.topology.node_definitions import ShippedNode
from lcm.providers.protocols.artifacts import digest_of

SHAPES: dict[tuple[str, str], object] = {
    ("lcm.model", "node_definitions.json"): tuple[ShippedNode, ...],
    ("lcm.model", "prices.json"): PriceFile,
    ("lcm.model", "instance_types.json"): dict[str, Hardware],
    ("lcm.api.openapi", "examples.json"): ExampleFile,
}


def test_every_data_file_has_a_type_that_a_test_knows() -> None:
    source = suite.ROOT / "src"
    found = {(file.parent.parent.relative_to(source), file.name) for file in source.glob("lcm/**/data/*.json")}
    assert found == {(Path(package.replace(".", "/")), name) for package, name in SHAPES}


@pytest.mark.parametrize(("package", "name"), SHAPES)
def test_a_data_file_is_read_and_says_nothing_twice(package: str, name: str) -> None:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(pairs)) == len(pairs), f"{[key for key, _ in pairs]} has a key twice"
        return dict(pairs)

    read: object = read_data_file(package, name, SHAPES[package, name])  # type: ignore[arg-type]
    assert read
    json.loads((suite.ROOT / "src" / package.replace(".", "/") / "data" / name).read_text(), object_pairs_hook=once)


def test_a_bad_data_file_is_named_with_the_place_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken" / "data").mkdir(parents=True)
    (tmp_path / "broken" / "__init__.py").touch()
    (tmp_path / "broken" / "data" / "types.json").write_text('{"m5.metal": [96, "much"]}')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AssertionError, match=r"broken/data/types.json: Expected `int`, got `str` - at `\$\[\.\.\.\]"):
        read_data_file("broken", "types.json", dict[str, Hardware])


def test_the_shipped_nodes_have_ids_of_their_own_and_the_interfaces_they_begin_with() -> None:
    nodes = read_data_file("lcm.model", "node_definitions.json", tuple[ShippedNode, ...])
    assert len({node.definition_id for node in nodes}) == len(nodes)
    assert not [node for node in nodes if node.default_interfaces > len(node.interfaces)]


def test_the_shipped_prices_could_be_those_of_a_site() -> None:
    shipped = read_data_file("lcm.model", "prices.json", PriceFile)
    assert parse_price_file(msgspec.to_builtins(shipped)) == shipped
    assert shipped.as_of is not None
    assert shipped.hourly.keys() == shipped.disks.keys()


def test_the_examples_of_a_lab_are_of_the_same_file() -> None:
    lab = BODIES["LabFile"].encode()
    report = msgspec.convert(BODIES["TopologyReport"], TopologyReport)
    assert (report.digest, report.size_bytes) == (digest_of(lab), len(lab))
    assert BODIES["FileBytes"] == BODIES["LabFile"]
    assert {one["digest"] for one in BODIES["ArtifactList"]["items"]} == {report.digest}
