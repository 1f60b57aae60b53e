"""Registering and giving back CML's licence, with polling until the licence server has agreed. Used by `cml`.

Each step starts from what CML says now, so a step that was cut off is taken up where it stopped.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Later, LcmError, Unreachable
from lcm.providers.cml.answers import LICENCE, LicenceAnswer
from lcm.providers.cml.errors import Asked
from lcm.providers.cml.polling import until
from lcm.providers.cml.rest import Wire
from lcm.providers.protocols.labhost import CmlLicensingError, Licence, NotReady

_NOT_REGISTERED: Final = "NOT_REGISTERED"
_HAND_IN: Final = frozenset({_NOT_REGISTERED, "FAILED", "RETRY_IN_PROGRESS"})
"""States of registration in which a token is handed in; in all others that is under way or done."""
_SEATLESS: Final = frozenset({_NOT_REGISTERED, "FAILED"})
_LOCALLY_ONLY: Final = 202
_SEAT_UNKNOWN: Final = (
    "CML forgot its licence, but its answer was lost, which would have said whether the licence server knows: look "
    "there for this product instance, and remove it if it is still there, or its seat stays taken"
)
_STALE_LOOKS: Final = 5


async def read(wire: Wire) -> LicenceAnswer:
    """Read the licence."""
    return await wire.ask("licensing", LICENCE)


async def register(wire: Wire, *, product: str, token: Secret, expansion_nodes: int) -> Licence:
    """Bring the licence to this product and this many expansion nodes, in compliance."""
    before = await read(wire)
    if before.value().registered and before.product_license.active != product:
        await deregister(wire)
        before = await read(wire)
    if before.product_license.active != product:
        await wire.tell("PUT", "licensing/product_license", product, asked=Asked.LICENCE)
    if before.registration.status in _HAND_IN:
        body = {"token": token.reveal(), "reregister": before.registration.status != _NOT_REGISTERED}
        await wire.tell("POST", "licensing/registration", body, asked=Asked.LICENCE, hide=token)
    await _registered(wire, before, token)
    await _expand(wire, expansion_nodes)
    return (await _until(wire, lambda now: now.value().in_compliance, _not_in_compliance)).value()


async def deregister(wire: Wire) -> Licence:
    """Give the licence back."""
    before = await read(wire)
    if _unregistered(before):
        return before.value()
    try:
        status = await wire.tell("DELETE", "licensing/deregistration", asked=Asked.DEREGISTER)
    except Later as error:
        now = await read(wire)
        if now.registration.status not in _SEATLESS:
            raise
        if isinstance(error, Unreachable | NotReady) and before.registration.status not in _SEATLESS:
            raise CmlLicensingError("LicenceSeatUnknown", _SEAT_UNKNOWN) from error
        return now.value()
    if status == _LOCALLY_ONLY:
        raise CmlLicensingError(
            "LicenceSeatNotReturned",
            "CML forgot its licence but could not tell the licence server: remove this product instance there, "
            "or its seat stays taken",
        )
    return (await _until(wire, _unregistered, partial(_too_long, "the deregistration"))).value()


def _unregistered(now: LicenceAnswer) -> bool:
    return now.registration.status == _NOT_REGISTERED


async def _registered(wire: Wire, before: LicenceAnswer, token: Secret) -> None:
    loop = asyncio.get_running_loop()
    believed_from = loop.time() + _STALE_LOOKS * wire.limits.poll_seconds

    def over(now: LicenceAnswer) -> bool:
        # CML tells attempts apart by the second, and may for a moment still show how the one before ended.
        news = now.attempt != before.attempt or loop.time() > believed_from
        return now.value().registered or (news and _final(now))

    now = await _until(wire, over, partial(_too_long, "the registration"))
    if not now.value().registered:
        failure = token.hide_in(now.value().failure or now.registration.status)
        raise CmlLicensingError("LicenceTokenRefused", f"CML could not register: {failure}; get a new token")


def _final(now: LicenceAnswer) -> bool:
    """Tell a refusal from a licence server that CML still tries to reach."""
    return now.registration.status == "FAILED" or "not valid" in (now.registration.register_time.failure or "")


async def _expand(wire: Wire, nodes: int) -> None:
    expansion = (await read(wire)).expansion
    if expansion is None and nodes:
        raise CmlLicensingError("LicenceHasNoExpansion", "this product takes no expansion nodes: ask for none")
    if expansion is not None and expansion.in_use != nodes:
        counts = [{"id": expansion.id, "count": nodes}]
        await wire.tell("PATCH", "licensing/features", counts, asked=Asked.LICENCE)


def _too_long(what: str, now: LicenceAnswer) -> LcmError:
    return Later(f"{what} takes long: CML says {now.registration.status}")


def _not_in_compliance(now: LicenceAnswer) -> LcmError:
    if now.authorization.status == "OUT_OF_COMPLIANCE":
        return CmlLicensingError("LicenceOutOfCompliance", "no licence seat is free: free one or buy more")
    return Later(f"the authorization of the licence takes long: CML says {now.authorization.status}")


async def _until(
    wire: Wire, done: Callable[[LicenceAnswer], bool], late: Callable[[LicenceAnswer], LcmError]
) -> LicenceAnswer:
    limits = wire.limits
    return await until(
        done, partial(read, wire), every_seconds=limits.poll_seconds, within_seconds=limits.licence_seconds, late=late
    )
