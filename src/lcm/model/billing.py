"""What workers cost: stretches of time in one billing state, each with the price it began at.

Pure. The control plane opens and closes intervals in the commits that report what EC2 said (`control.billing`).
"""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from lcm.model.money import Usd
from lcm.model.resource import Moment, Name, Part, Region, ShortText


class Billing(StrEnum):
    """What is paid for: machine and disk, or the disk alone."""

    RUNNING = "running"
    STOPPED = "stopped"


class BillingInterval(Part):
    """A stretch during which a worker cost the same; without an end it goes on."""

    worker_id: ShortText
    worker_name: Name
    namespace: Name
    lab_track: ShortText
    region: Region
    instance_type: ShortText
    instance_id: ShortText
    state: Billing
    usd_hourly: Usd
    since: Moment
    until: Moment | None = None

    def usd(self, now: datetime) -> Decimal:
        """Say what it has cost until now."""
        raise NotImplementedError
