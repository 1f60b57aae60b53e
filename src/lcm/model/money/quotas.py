"""Quota rules: which of them bounds a booking, and how a quota is shown.

Pure. `control.booking.quota` checks bookings by them, `cli.fleet.quota` writes them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from lcm.model.base.resource import Moment, Name, Part, ShortText, Text
from lcm.model.kinds.settings import QUOTA_SELECTORS, QuotaRule


class Limit(NamedTuple):
    """A limit: the default's name in the settings, the word in a refusal, what it counts, and what helps."""

    default: str
    why: str
    option: str
    noun: str
    advice: str


LIMITS: Final[Mapping[str, Limit]] = {
    "horizon_days": Limit("horizon_days", "horizon_limit", "--horizon", "days ahead", "choose an earlier time"),
    "pending": Limit(
        "max_pending", "pending_limit", "--pending", "sessions waiting", "wait until one has started, or cancel one"
    ),
    "sessions": Limit(
        "max_live", "live_limit", "--sessions", "sessions", "choose another time, book fewer, or cancel one"
    ),
    "nodes": Limit(
        "max_nodes", "nodes_limit", "--nodes", "CML nodes", "choose another time or a smaller lab, or cancel one"
    ),
    "ahead": Limit("max_ahead", "ahead_limit", "--ahead", "sessions booked ahead", "book fewer, or cancel some"),
    "hours_ahead": Limit(
        "max_hours_ahead", "hours_ahead_limit", "--hours-ahead", "hours booked ahead", "book less, or cancel some"
    ),
    "hours_per_month": Limit(
        "max_hours_per_month", "hours_limit", "--hours", "hours", "book less, cancel some, or choose another month"
    ),
    "usd_per_month": Limit(
        "max_usd_per_month", "usd_limit", "--usd", "USD", "book less, cancel some, or choose another month"
    ),
}
"""Every limit, in the order in which they are checked."""


class RuleBook:
    """The rules of the settings object, the most specific ones first."""

    def __init__(self, rules: Iterable[QuotaRule] = ()) -> None:
        ordered = sorted(rules, key=_specificity, reverse=True)
        self._personal = [one for one in ordered if is_personal(one)]
        self.shared = tuple(one for one in ordered if not is_personal(one))

    def personal_rules(self, owner: str, role: str) -> Sequence[QuotaRule]:
        """Return the rules that bound an owner of a role, the most specific ones first."""
        return [one for one in self._personal if one.owner in (None, owner) and one.role in (None, role)]


def is_personal(rule: QuotaRule) -> bool:
    """Return whether a rule bounds each owner, not everybody together."""
    return rule.owner is not None or rule.role is not None


def selects_scope(rule: QuotaRule, scope: tuple[str, str]) -> bool:
    """Return whether a rule is about bookings of a namespace and a track."""
    return rule.namespace in (None, scope[0]) and rule.track in (None, scope[1])


def find_rule(rules: Iterable[QuotaRule], limit: str, scope: tuple[str, str]) -> QuotaRule | None:
    """Return the first rule that names a limit for a scope: of ordered rules the most specific one."""
    return next((one for one in rules if getattr(one, limit) is not None and selects_scope(one, scope)), None)


def describe_selection(rule: QuotaRule) -> str:
    """Return what a rule selects, in words."""
    named = ((name, getattr(rule, name)) for name in QUOTA_SELECTORS)
    return ", ".join(f"{name} {value or '(none)'}" for name, value in named if value is not None)


def _specificity(rule: QuotaRule) -> tuple[bool, ...]:
    """Return by what rules are compared: the owner, then the role, the track, the namespace."""
    return rule.owner is not None, rule.role is not None, rule.track is not None, rule.namespace is not None


_Amount = Annotated[float, Meta(description="sessions, slots, nodes, days, hours or US dollars, as the limit counts")]


class QuotaLine(Part):
    """One limit: how much there may be, where that comes from, how much is used, and how much is left.

    Sessions and nodes are those of the busiest moment from now on, `at`. Hours and dollars of a month are those of the
    present one.
    """

    limit: Annotated[ShortText, Meta(examples=["sessions"])]
    source: Annotated[Text, Meta(examples=["default", "rule: role author", "no limit"])]
    most: _Amount | None = None
    used: _Amount = 0.0
    left: _Amount | None = None
    at: Moment | None = None


class QuotaView(Part):
    """The quotas of an owner, or of everybody in a namespace or on a track. None means all of them."""

    lines: tuple[QuotaLine, ...]
    owner: ShortText | None = None
    namespace: Name | None = None
    track: ShortText | None = None


class QuotaPage(Part):
    """Quotas; `next` is the cursor of the following page, None on the last."""

    items: tuple[QuotaView, ...]
    next: str | None = None
