"""Which of several pools is asked first, and which of several planned workers gets a machine. Pure.

Bookings go by it (`control.booking.promise`), the scheduler and the explanations go by it: first the preferred region,
then what the session would cost there an hour.
"""

from decimal import Decimal
from math import inf

from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.worker import AwsSpec
from lcm.model.money.prices import PriceBook
from lcm.model.money.split import WHOLE, share_of
from lcm.placement.request import Place, PlacementRequest

Preference = tuple[bool, float]
"""A sort key: whether it is outside of the preferred region, and dollars an hour."""


def preference(place: Place, request: PlacementRequest) -> Preference:
    """Return how much a request prefers that a machine runs at a place; the least is the best."""
    elsewhere = request.region_preferred not in (None, place.region)
    if place.usd_hourly is None:
        return elsewhere, inf  # an unknown price is not a low one
    return elsewhere, round(float(place.usd_hourly) * share_of(request.claim.need, place.capacity) / WHOLE, 6)


def machine_usd(aws: AwsSpec, prices: PriceBook) -> Decimal | None:
    """Return the price of a running machine, the highest of its types; None if one is not known."""
    types = (aws.instance_type, *aws.instance_type_alternatives)
    hourly = prices.spot_hourly if aws.market == "spot" else prices.hourly
    found = [hourly(aws.region, one) for one in types]
    known = [one for one in found if one is not None]
    return max(known) if len(known) == len(types) else None


def running_usd(aws: AwsSpec, prices: PriceBook) -> Decimal | None:
    """Return what an hour of a running machine is billed with, its disk included; None if its price is not known.

    A budget that left out the disk would be exceeded.
    """
    machine = machine_usd(aws, prices)
    return None if machine is None else machine + (prices.disk_hourly(aws.root_volume, aws.region) or 0)


def planned_usd(template: WorkerTemplate, prices: PriceBook) -> Decimal | None:
    """Return what a machine of a template is planned with: the template's own price, or else that of its types."""
    own = template.spec.price_per_hour_usd
    return own if own is not None else running_usd(template.spec.worker.aws, prices)
