"""`lcm quota`: everybody sees their own, staff see and change those of others."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.api_world import ApiServer, Shell, served, shell
from harness.booking_world import TERMS, furnish
from lcm.control.booking.quota import OwnerLimits


@pytest.fixture(name="api", scope="module")
def api_with_quotas() -> Iterator[ApiServer]:
    with served(terms=TERMS, quotas=OwnerLimits(live=2)) as api:
        furnish(api)
        yield api


@pytest.fixture(name="root")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path, columns=100)


def test_a_grant_is_shown_used_and_taken_back(api: ApiServer, root: Shell, tmp_path: Path) -> None:
    ada = shell(api, tmp_path, "ada", columns=100)
    assert "sessions at once   2     0     2     default" in ada.lcm("quota").output
    for _ in range(2):
        assert not ada.lcm("book", "basics", "--now", "--for", "1h").exit_code
    refused = ada.lcm("book", "basics", "--now", "--for", "1h")
    assert refused.exit_code == 5
    assert "2 of at most 2 sessions at" in (told := " ".join(refused.output.split()))
    assert "an operator may grant more: lcm quota set ada --sessions N" in told
    told = root.lcm("quota", "set", "ada", "--sessions", 3, "--usd", 7).output
    assert told == "owner ada: sessions at once 3, USD this month 7\n"
    assert not ada.lcm("book", "basics", "--now", "--for", "1h").exit_code
    shown = ada.lcm("quota").output.splitlines()
    assert any(line.split() == ["sessions", "at", "once", "3", "3", "0", "rule:", "owner", "ada"] for line in shown)
    assert "no rule of its own" in root.lcm("quota", "unset", "ada").output
    line = next(
        one
        for one in json.loads(root.lcm("quota", "ada", "-o", "json").output)["items"][0]["lines"]
        if one["limit"] == "sessions"
    )
    assert (line["most"], line["used"], line["left"], line["source"]) == (2, 3, 0, "default")


def test_who_has_used_four_fifths_of_a_months_dollars_is_told_when_booking(
    api: ApiServer, root: Shell, tmp_path: Path
) -> None:
    bob, said = shell(api, tmp_path, "bob", columns=100), "of this month's 5 USD are spent or booked"
    assert not root.lcm("quota", "set", "bob", "--usd", 5).exit_code
    told = [bob.lcm("book", "basics", "--now", "--for", "1h") for _ in range(3)]
    assert [one.exit_code for one in told] == [0, 0, 5], "each costs more than two dollars"
    assert [said in " ".join(one.output.split()) for one in told] == [False, True, False]


def test_everybodys_together_and_those_of_a_role(root: Shell, api: ApiServer, tmp_path: Path) -> None:
    assert "track ccna: sessions at once 30" in root.lcm("quota", "set", "--track", "ccna", "--sessions", 30).output
    assert "sessions at once   30" in root.lcm("quota", "--track", "ccna").output
    assert "role author: slots ahead 70" in root.lcm("quota", "set", "--role", "author", "--ahead", 70).output
    assert "rule: role author" in shell(api, tmp_path, "anna", columns=100).lcm("quota").output
    assert "track ccna\n" in root.lcm("quota", "--all").output
    assert not root.lcm("quota", "set", "--track", "ccna", "--nodes", 9, "--dry-run").exit_code
    assert "CML nodes at once  -" in root.lcm("quota", "--track", "ccna").output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["set", "--sessions", 3], "whose?"),
        (["set", "ada"], "how much?"),
        (["zoë"], "owner: not a valid name; use letters"),
        (["unset", "ada", "--usd", 1], "takes the whole rule back"),
        (["ada", "--sessions", 3], "lcm quota set OWNER"),
        (["set", "ada", "bob", "--usd", 1], "one owner at a time"),
        (["set", "--track", "ccna", "--horizon", 3], "bounds owners, not all together"),
        (["set", "ada", "--sessions", -1], "from 0 to 1000000"),
    ],
)
def test_what_cannot_be_meant_is_refused(root: Shell, words: list[object], says: str) -> None:
    answer = root.lcm("quota", *words)
    assert answer.exit_code
    assert says in " ".join(answer.output.split())


def test_nobody_but_staff_sees_or_changes_those_of_others(api: ApiServer, tmp_path: Path) -> None:
    ada = shell(api, tmp_path, "ada")
    assert "may not read the quotas of others" in " ".join(ada.lcm("quota", "bob").output.split())
    assert ada.lcm("quota", "set", "ada", "--usd", 9).exit_code == 5
