"""Registering and returning CML's licence, with polling until the licence server has agreed. Used by `host`.

Each step starts from what CML says now, so an interrupted operation continues where it stopped.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Later, LcmError, Unreachable
from lcm.providers.cml.answers import LICENCE, LicenceAnswer
from lcm.providers.cml.errors import CmlOperation
from lcm.providers.cml.polling import poll_until
from lcm.providers.cml.rest import CmlClient
from lcm.providers.protocols.labhost import CmlLicensingError, Licence, NotReady

_NOT_REGISTERED: Final = "NOT_REGISTERED"
_SUBMIT_STATES: Final = frozenset({_NOT_REGISTERED, "FAILED", "RETRY_IN_PROGRESS"})
"""States of registration in which a token is submitted. In all others that is under way or done."""
_SEATLESS_STATES: Final = frozenset({_NOT_REGISTERED, "FAILED"})
_ONLY_LOCALLY: Final = 202
_SEAT_UNKNOWN: Final = (
    "CML forgot its licence, but its answer was lost, which would have said whether the licence server knows: look "
    "there for this product instance, and remove it if it is still there, or its seat stays taken"
)
_STALE_POLLS: Final = 5


async def read_licence(wire: CmlClient) -> LicenceAnswer:
    """Read the licence."""
    return await wire.read("licensing", LICENCE)


async def register(wire: CmlClient, *, product: str, token: Secret, expansion_nodes: int) -> Licence:
    """Bring the licence to this product and this many expansion nodes, in compliance."""
    before = await read_licence(wire)
    if before.value().is_registered and before.product_license.active != product:
        await deregister(wire)
        before = await read_licence(wire)
    if before.product_license.active != product:
        await wire.send("PUT", "licensing/product_license", product, asked=CmlOperation.LICENCE)
    if before.registration.status in _SUBMIT_STATES:
        body = {"token": token.reveal(), "reregister": before.registration.status != _NOT_REGISTERED}
        await wire.send("POST", "licensing/registration", body, asked=CmlOperation.LICENCE, hide=token)
    await _wait_for_registration(wire, before, token)
    await _set_expansion(wire, expansion_nodes)
    return (await _poll_licence(wire, lambda now: now.value().in_compliance, _compliance_error)).value()


async def deregister(wire: CmlClient) -> Licence:
    """Return the licence."""
    before = await read_licence(wire)
    if _is_unregistered(before):
        return before.value()
    try:
        status = await wire.send("DELETE", "licensing/deregistration", asked=CmlOperation.DEREGISTER)
    except Later as error:
        now = await read_licence(wire)
        if now.registration.status not in _SEATLESS_STATES:
            raise
        if isinstance(error, Unreachable | NotReady) and before.registration.status not in _SEATLESS_STATES:
            raise CmlLicensingError("LicenceSeatUnknown", _SEAT_UNKNOWN) from error
        return now.value()
    if status == _ONLY_LOCALLY:
        raise CmlLicensingError(
            "LicenceSeatNotReturned",
            "CML forgot its licence but could not tell the licence server: remove this product instance there, "
            "or its seat stays taken",
        )
    return (await _poll_licence(wire, _is_unregistered, partial(_late_error, "the deregistration"))).value()


def _is_unregistered(now: LicenceAnswer) -> bool:
    return now.registration.status == _NOT_REGISTERED


async def _wait_for_registration(wire: CmlClient, before: LicenceAnswer, token: Secret) -> None:
    loop = asyncio.get_running_loop()
    believed_from = loop.time() + _STALE_POLLS * wire.limits.poll_seconds

    def over(now: LicenceAnswer) -> bool:
        # CML stamps attempts in whole seconds, and may for a moment still show the result of the previous one.
        news = now.attempt != before.attempt or loop.time() > believed_from
        # Anything else is a licence server that CML still tries to reach.
        refused = now.registration.status == "FAILED" or "not valid" in (now.registration.register_time.failure or "")
        return now.value().is_registered or (news and refused)

    now = await _poll_licence(wire, over, partial(_late_error, "the registration"))
    if not now.value().is_registered:
        failure = token.hide_in(now.value().failure or now.registration.status)
        raise CmlLicensingError("LicenceTokenRefused", f"CML could not register: {failure}; get a new token")


async def _set_expansion(wire: CmlClient, nodes: int) -> None:
    expansion = (await read_licence(wire)).expansion
    if expansion is None and nodes:
        raise CmlLicensingError("LicenceHasNoExpansion", "this product takes no expansion nodes: ask for none")
    if expansion is not None and expansion.in_use != nodes:
        counts = [{"id": expansion.id, "count": nodes}]
        await wire.send("PATCH", "licensing/features", counts, asked=CmlOperation.LICENCE)


def _late_error(what: str, now: LicenceAnswer) -> LcmError:
    return Later(f"{what} takes long: CML says {now.registration.status}")


def _compliance_error(now: LicenceAnswer) -> LcmError:
    if now.authorization.status == "OUT_OF_COMPLIANCE":
        return CmlLicensingError("LicenceOutOfCompliance", "no licence seat is free: free one or buy more")
    return Later(f"the authorization of the licence takes long: CML says {now.authorization.status}")


async def _poll_licence(
    wire: CmlClient, done: Callable[[LicenceAnswer], bool], late: Callable[[LicenceAnswer], LcmError]
) -> LicenceAnswer:
    limits = wire.limits
    return await poll_until(
        done,
        partial(read_licence, wire),
        every_seconds=limits.poll_seconds,
        within_seconds=limits.licence_seconds,
        late=late,
    )
