"""What is under examples/: its programs run and print what they promise, its documents and lab files are right."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import suite
from harness.clouds import Bench
from lcm.cli.documents.lab_files import prepare_documents
from lcm.cli.documents.sources import gather
from lcm.model.kinds.validate import parse_document as read_resource
from lcm.model.topology.lab import compute_needs, parse_lab, rewrite
from lcm.model.topology.node_definitions import shipped_nodes
from lcm.providers.protocols.artifacts import digest_of

EXAMPLES = suite.ROOT / "examples"


def test_the_allocator_demo_survives_its_restart() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "allocator_demo.py"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "after a restart        CPU  62.5%   memory  50.0%   1 allocations" in done.stdout
    assert "insufficient resources: 2 CPU and 4096Mi wanted, 1 CPU and 3584Mi available" in done.stdout
    assert "nothing to release: unknown or already released" in done.stdout + done.stderr


def documents(folder: Path) -> Iterator[Any]:
    """Read a folder as `lcm apply` does: a lab file beside a definition stands for its address."""
    what = prepare_documents(gather([str(folder)], recursive=False).sources, now=datetime(2026, 12, 1, tzinfo=UTC))
    assert what.faults == []
    yield from map(read_resource, what.values)


def test_the_examples_are_well_formed_and_of_one_piece() -> None:
    found = {
        (one.kind, one.metadata.name): one for name in ("first", "timetable") for one in documents(EXAMPLES / name)
    }
    bookings = [one for (kind, _), one in found.items() if kind in {"LabletSession", "Reservation"}]
    assert len(bookings) > 3
    for one in bookings:
        assert ("LabletDefinition", one.spec.definition) in found
        assert any(
            kind == "LabWorkerPool" and pool.spec.lab_track == one.spec.lab_track for (kind, _), pool in found.items()
        )


@pytest.mark.parametrize("name", ["hackathon", "certification-week", "university-course"])
def test_the_timetables_to_plan_by_are_of_one_piece(name: str) -> None:
    plan = msgspec.yaml.decode((EXAMPLES / "plan" / f"{name}.yaml").read_bytes())
    known = {one["name"]: one["track"] for one in plan["definitions"]}
    tracks = {one["track"] for one in plan["fleet"]}
    for one in plan["sessions"]:
        assert one["track"] == known[one["definition"]]
        assert one["track"] in tracks
        assert ("every" in one) == ("until" in one)
        assert datetime.fromisoformat(str(one["at"])) > datetime(2027, 1, 1)  # noqa: DTZ001 - the file says UTC once


def test_the_example_definition_says_what_its_lab_file_says() -> None:
    data = (EXAMPLES / "first" / "labs" / "ccna-basics.yaml").read_bytes()
    lab = parse_lab(data)
    (definition,) = (one for one in documents(EXAMPLES / "first") if one.kind == "LabletDefinition")
    spec = definition.spec
    assert (spec.topology.uri, spec.topology.digest) == (f"artifact://{digest_of(data)}", digest_of(data))
    assert "uri: labs/ccna-basics.yaml " in (EXAMPLES / "first" / "definition.yaml").read_text()
    assert spec.resource_requirements == compute_needs(lab, shipped_nodes())
    assert spec.port_template == lab.port_template
    assert spec.node_count == lab.node_count
    assert set(spec.ami_requirements.node_definitions) == set(lab.node_definitions)


def test_the_example_lab_boots_with_every_port_open() -> None:
    bench = Bench()
    data = (EXAMPLES / "first" / "labs" / "ccna-basics.yaml").read_bytes()
    ports = {"R1_serial": 4001, "R2_serial": 4002, "PC_vnc": 4003}
    lab = bench.booted(rewrite(data, ports).decode())
    assert bench.converged(lab)
    assert sorted(bench.cml.patty_ports()) == sorted(ports.values())
