"""Where a session's lab is reached. Pure."""

from collections.abc import Mapping
from typing import Final

from lcm.model.definition import PortEnd, PortTemplate
from lcm.model.worker import LabWorker

_SCHEMES: Final = {"serial": "telnet", "vnc": "vnc"}


def address_of(worker: LabWorker) -> str:
    """Say at which address a worker's ports are; "" while it has none."""
    machine = worker.status.ec2
    return (machine.public_ip if worker.spec.aws.public_ip else machine.private_ip) or ""


def access_urls(worker: LabWorker, ports: Mapping[str, int], template: PortTemplate) -> dict[str, str]:
    """Give the address of each port that leads somewhere, by its name; a number among words leads nowhere."""
    address = address_of(worker)
    ends = {name: template[name].ends for name in sorted(ports) if name in template}
    return {name: f"{_scheme(use[0])}://{address}:{ports[name]}" for name, use in ends.items() if use and address}


def _scheme(end: PortEnd) -> str:
    return _SCHEMES.get(end.kind) or end.protocol or "tcp"
