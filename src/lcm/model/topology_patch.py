"""Changing scalars where they stand in a file, and proving that nothing else changed. Called by `topology`."""

from collections.abc import Iterable, Mapping
from itertools import zip_longest

from lcm.model.errors import Fault, Invalid
from lcm.model.topology_ports import LAST_PORT, PLACEHOLDER, Site
from lcm.model.topology_yaml import Document, Scalar, kind_of, read, shown


def patch(document: Document, sites: Iterable[Site], ports: Mapping[str, int]) -> bytes:
    """Write each site's new value in place of its old one, in the quotes it has."""
    ordered = sorted(sites, key=lambda site: site.scalar.start)
    _check(ordered, ports)
    pieces: list[str] = []
    done = 0
    for site in ordered:
        start, end = document.span(site.scalar)
        pieces += (document.text[done:start], _written(site, document.text[start:end], ports))
        done = end
    pieces.append(document.text[done:])
    data = document.with_text("".join(pieces))
    _prove(document, read(data), {site.scalar.ordinal: site for site in ordered}, ports)
    return data


def _check(sites: Iterable[Site], ports: Mapping[str, int]) -> None:
    """Refuse to write a port that is not there, is none, or is another's."""
    faults: list[Fault] = []
    owners: dict[int, str] = {}
    for site in sites:
        for name in site.parts[1::2]:
            port = ports.get(name)
            if port is None:
                faults.append(_fault(site, f"no port was given for {name!r}", "allocate all ports of the template"))
            elif not 0 < port <= LAST_PORT:
                faults.append(_fault(site, f"{port} for {name!r} is no port", f"use 1 to {LAST_PORT}"))
            elif owners.setdefault(port, name) != name:
                problem = f"port {port} was given to {owners[port]!r} and to {name!r}"
                faults.append(_fault(site, problem, "allocate each port once"))
    if faults:
        raise Invalid(*faults)


def _written(site: Site, source: str, ports: Mapping[str, int]) -> str:
    """Write a site as it was written before, with the new ports."""
    scalar, value = site.scalar, site.value(ports)
    if source.count(scalar.value) == 1:
        written = source.replace(scalar.value, value)
    else:
        written = PLACEHOLDER.sub(lambda found: str(ports.get(found[1], found[0])), source)
    changed_kind = scalar.plain and kind_of(value) != scalar.kind
    # A lone ${PORT_X} without quotes is text, but the number that takes its place would not be.
    return f"'{written}'" if changed_kind else written


def _prove(before: Document, after: Document, sites: Mapping[int, Site], ports: Mapping[str, int]) -> None:
    """Compare both files thing by thing, and what is between them: but for the sites all is as it was."""
    for number, (old, new) in enumerate(zip_longest(before.happenings, after.happenings)):
        if isinstance(old, Scalar) and isinstance(new, Scalar):
            site = sites.get(number)
            if site is None:
                assert (new.value, new.plain) == (old.value, old.plain), f"line {old.line} changed"
            elif new.value != site.value(ports) or new.kind != old.kind:
                problem = f"{shown(old.value)} is written in a way that cannot be changed in place"
                raise Invalid(_fault(site, problem, "write it on one line, plain or in quotes, without escapes"))
        else:
            assert old == new, f"the structure changed at {old} or {new}"
    assert _around(before, sites) == _around(after, sites), "a comment or a space changed"


def _around(document: Document, sites: Iterable[int]) -> list[str]:
    """Cut out what may change, and give the rest."""
    pieces: list[str] = []
    done = 0
    for number in sites:
        scalar = document.happenings[number]
        assert isinstance(scalar, Scalar)
        start, end = document.span(scalar)
        pieces.append(document.text[done:start])
        done = end
    return [*pieces, document.text[done:]]


def _fault(site: Site, problem: str, remedy: str) -> Fault:
    where = f"line {site.scalar.line}"
    return Fault(f"{where}: {site.path}" if site.path else where, problem, remedy)
