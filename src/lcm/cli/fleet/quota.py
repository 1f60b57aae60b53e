"""`lcm quota`: what may be booked, is booked, and is left; `lcm quota set|unset`: grant more or less, as a rule."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from lcm.cli.output import connection, render, table
from lcm.cli.output.options import ContextName, DryRun, ListFormat, ListOutput
from lcm.cli.output.printer import print_json
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.access.identity import Role
from lcm.model.base.errors import Conflict
from lcm.model.base.resource import Metadata
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.settings import QUOTA_LIMITS, QUOTA_SELECTORS, QuotaRule, SystemSettings, set_limits
from lcm.model.money.quotas import LIMITS, QuotaLine, QuotaView, describe_selection
from lcm.system.clock import SystemClock

_SET, _UNSET = "set", "unset"
_HEADINGS: Final = ("LIMIT", "MOST", "USED", "LEFT", "FROM")
_ATTEMPTS: Final = 10
_LABELS: Final = {
    "sessions": "sessions at once",
    "nodes": "CML nodes at once",
    "pending": "sessions waiting",
    "ahead": "slots ahead",
    "hours_ahead": "hours ahead",
    "hours_per_month": "hours this month",
    "usd_per_month": "USD this month",
    "horizon_days": "days ahead",
}
_MostOption = int | None


def quota(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[set|unset] [OWNER]", help="Whose quota to show or to change; default: your own."),
    ] = None,
    *,
    role: Annotated[Role | None, typer.Option("--role", help="Role: of the owner, or whom a rule is for.")] = None,
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", metavar="NS", help="Only bookings in this namespace.")
    ] = None,
    track: Annotated[str | None, typer.Option("--track", metavar="TRACK", help="Only bookings on this track.")] = None,
    sessions: Annotated[_MostOption, typer.Option("--sessions", metavar="N", help="Sessions at once.")] = None,
    pending: Annotated[_MostOption, typer.Option("--pending", metavar="N", help="Sessions waiting.")] = None,
    ahead: Annotated[_MostOption, typer.Option("--ahead", metavar="N", help="Slots that have not begun.")] = None,
    horizon: Annotated[_MostOption, typer.Option("--horizon", metavar="DAYS", help="Days ahead.")] = None,
    nodes: Annotated[_MostOption, typer.Option("--nodes", metavar="N", help="CML nodes at once.")] = None,
    hours_ahead: Annotated[_MostOption, typer.Option("--hours-ahead", metavar="N", help="Hours of such slots.")] = None,
    hours: Annotated[_MostOption, typer.Option("--hours", metavar="N", help="Hours of sessions per month.")] = None,
    usd: Annotated[_MostOption, typer.Option("--usd", metavar="N", help="US dollars per month.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Show all owners and rules.")] = False,
    dry_run: DryRun = False,
    output: ListOutput = ListFormat.TABLE,
    context: ContextName = None,
) -> None:
    """Show quotas: your own, or as staff of an owner, a namespace or a track. `set` and `unset` change a rule.

    `lcm quota set ada --sessions 20 --usd 500` grants; `lcm quota unset ada` takes it back. With --role for all of a
    role, with only --track or --namespace for everybody there together.
    """
    verb, owner = _parse_words(words or [])
    limits: dict[str, int | None] = {
        "sessions": sessions,
        "pending": pending,
        "ahead": ahead,
        "horizon_days": horizon,
        "nodes": nodes,
        "hours_ahead": hours_ahead,
        "hours_per_month": hours,
        "usd_per_month": usd,
    }
    given = {name: most for name, most in limits.items() if most is not None}
    if not verb:
        if given:
            raise typer.BadParameter("write `lcm quota set OWNER …` to change a limit", param_hint="OPTION")
        about = {"owner": owner, "role": role, "namespace": namespace or "", "track": track, "everybody": everybody}
        _show(about, output, context)
        return
    selected = {"owner": owner or None, "role": role and role.value, "namespace": namespace, "track": track}
    if not any(value is not None for value in selected.values()):
        raise typer.BadParameter("whose? name an owner, --role, --namespace or --track", param_hint="OWNER")
    if (verb == _SET) is not bool(given):
        advice = (
            "how much? write for example --sessions 20" if verb == _SET else "takes the whole rule back: leave it out"
        )
        raise typer.BadParameter(advice, param_hint="OPTION")
    _change_rule(selected, given or dict.fromkeys(QUOTA_LIMITS), context, dry_run=dry_run)


def _parse_words(words: Sequence[str]) -> tuple[str, str]:
    """Return whether something is to be changed, and the owner."""
    verb, rest = (words[0], words[1:]) if words and words[0] in {_SET, _UNSET} else ("", words)
    if len(rest) > 1:
        raise typer.BadParameter("one owner at a time", param_hint="OWNER")
    return verb, rest[0] if rest else ""


def _change_rule(selected: dict[str, Any], limits: dict[str, Any], context: str | None, *, dry_run: bool) -> None:
    async def work(plane: Plane) -> QuotaRule:
        for _ in range(_ATTEMPTS - 1):
            try:
                return await _write_rule(plane, selected, limits, dry_run=dry_run)
            except Conflict:  # somebody else changed the settings
                continue
        return await _write_rule(plane, selected, limits, dry_run=dry_run)

    rule = connection.with_plane(work, context)
    left = ", ".join(f"{_LABELS[name]} {most}" for name, most in set_limits(rule).items())
    render.print_text(f"{describe_selection(rule)}: {left or 'no rule of its own'}")
    if dry_run:
        render.print_message("nothing was done: --dry-run")


async def _write_rule(plane: Plane, selected: dict[str, Any], limits: dict[str, Any], *, dry_run: bool) -> QuotaRule:
    """Change one rule of the settings at exactly the revision that was read. Raise Conflict if that is over."""
    known = await plane.get(Ref(SystemSettings, SETTINGS_NAME))
    settings = known or SystemSettings(metadata=Metadata(name=SETTINGS_NAME))
    rules = settings.spec.quotas.rules
    own = next((one for one in rules if all(getattr(one, name) == selected[name] for name in QUOTA_SELECTORS)), None)
    made = msgspec.structs.replace(own or QuotaRule(**selected), **limits)  # the API checks the numbers
    after = [made if one is own else one for one in rules]
    after = [one for one in (after if own else [*after, made]) if set_limits(one)]
    quotas = msgspec.structs.replace(settings.spec.quotas, rules=tuple(after))
    wanted = msgspec.structs.replace(settings, spec=msgspec.structs.replace(settings.spec, quotas=quotas))
    if known is None:
        await plane.create(wanted, dry_run=dry_run)
    else:
        await plane.replace(wanted, at=known.metadata.resource_version, dry_run=dry_run)
    return made


def _show(about: dict[str, Any], output: ListFormat, context: str | None) -> None:
    """Print the quotas of one subject, or those of everybody."""

    async def work(plane: Plane) -> list[QuotaView]:
        page = await plane.quotas(**about)
        views = [*page.items]
        while page.next is not None:
            page = await plane.quotas(**about, cursor=page.next)
            views += page.items
        return views

    views = connection.with_plane(work, context)
    if output is ListFormat.JSON:
        print_json({"items": views}, indent=2)
        return
    for number, view in enumerate(views):
        if number:
            render.print_line()
        render.print_line(_title_of(view))
        table.print_rows(_HEADINGS, [_row_of(one) for one in view.lines], SystemClock().now(), ranks={"FROM": 1})


def _title_of(view: QuotaView) -> str:
    named = (("owner", view.owner), ("namespace", view.namespace), ("track", view.track))
    return ", ".join(f"{name} {value or '(none)'}" for name, value in named if value is not None)


def _row_of(line: QuotaLine) -> tuple[str, ...]:
    whole = LIMITS[line.limit].option not in {"--hours", "--hours-ahead", "--usd"}
    most, used, left = (
        "-" if one is None else f"{one:.0f}" if whole or one == round(one) else f"{one:.2f}"
        for one in (line.most, line.used, line.left)
    )
    return _LABELS[line.limit], most, "" if line.limit == "horizon_days" else used, left, line.source
