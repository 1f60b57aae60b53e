"""`lcm alerts`: what is wrong and not settled, the most serious first."""

from typing import Annotated

import msgspec
import typer

from lcm.cli import render, run, table
from lcm.cli.events import Form
from lcm.cli.nouns import title_of
from lcm.cli.options import ContextName
from lcm.model.alert import Alert, Severity
from lcm.model.kinds import KINDS
from lcm.system import SystemClock


def alerts(
    output: Annotated[Form, typer.Option("-o", "--output", help="How to write them.")] = Form.TABLE,
    context: ContextName = None,
) -> None:
    """List what needs somebody's attention: each is raised once, and goes when its cause is over."""
    found = run.with_plane(lambda plane: plane.alerts(), context)
    if output is Form.JSON:
        body = msgspec.json.format(msgspec.json.encode({"items": found}), indent=2)
        render.out(render.escaped(body.decode()))
        return
    if not found:
        render.say("nothing needs attention")
        return
    now = SystemClock().now()
    worst = sorted(found, key=lambda one: (one.severity is not Severity.CRITICAL, one.since))
    rows = [(one.severity, one.alert, about(one), render.age(one.since, now), one.message) for one in worst]
    table.print_rows(("SEVERITY", "ALERT", "ABOUT", "AGE", "MESSAGE"), rows, now)


def about(alert: Alert) -> str:
    """Name what an alert is about."""
    return title_of(KINDS[alert.kind].struct, alert.name) if alert.kind in KINDS else f"{alert.kind}/{alert.name}"
