"""The way from a worker to its hypervisor: the `Hosts` protocol.

`cml_hosts` speaks to CML at the address in the worker's status, `sim.hosts` to what is attached to a simulated machine.
"""

from typing import Protocol

from lcm.model.worker import LabWorker
from lcm.providers.labhost import LabHost


class Hosts(Protocol):
    """Every worker's hypervisor."""

    async def of(self, worker: LabWorker) -> LabHost:
        """Give the hypervisor of a worker whose `status.cml.api_url` is known.

        The same object as long as address, certificate and credentials are the same. Raises Stuck when the password
        cannot be had, NotReady or Unreachable when the machine is not there.
        """
        ...

    async def certificate(self, worker: LabWorker) -> str:
        """Fetch what the machine shows at first contact, in PEM; "" where there is none to pin."""
        ...

    async def forget(self, worker: LabWorker) -> None:
        """Let go of what is kept for a worker that is gone. May be repeated."""
        ...

    async def close(self) -> None:
        """Let go of everything. May be repeated."""
        ...
