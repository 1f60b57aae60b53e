"""What `lcm up --cloud aws` says and asks before it acts: whose account, where, at what cost. Called by `up`."""

import sys

import typer

from lcm.cli import ceiling
from lcm.cli.render import out
from lcm.compose import Embedded
from lcm.compose_outside import aws_identity
from lcm.config import Settings
from lcm.model.errors import Refused
from lcm.model.identity import Caller, Role
from lcm.model.prices import SHIPPED_ON

_QUESTION = "Launch, stop and end machines in this account?"


async def confirm(it: Embedded, *, settings: Settings, yes: bool) -> None:
    """Say what is at stake, and raise Refused unless somebody agrees."""
    who = await aws_identity(settings)
    found = await ceiling.shares(it.running.control.acting(_READER), it.running.control.fleet.prices)
    searched = ", ".join(settings.worker_discovery_regions)
    out(f"AWS account {who.account}, as {who.arn}\n  region    {settings.aws_region}; {searched} searched for machines")
    for one in found:
        each = f"{one.each:.2f} USD an hour each" if one.each is not None else "price not known"
        out(f"  {one.what}: up to {one.most}, {each}")
    more = ", and what has no price" if any(one.each is None for one in found) else ""
    book = settings.price_book or f"AWS's prices of {SHIPPED_ON}"
    out(f"  at most   {ceiling.total(found):.2f} USD an hour{more}, by {book}; more when more is applied")
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("nobody is here to agree to what this costs; add --yes")
    if not typer.confirm(_QUESTION, default=False):
        raise Refused("nothing was done; without --cloud aws everything is simulated")


_READER = Caller(name="lcm up", role=Role.ADMIN)
