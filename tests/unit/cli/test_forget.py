"""`lcm forget` and `lcm feed` against an API that promises."""

from pathlib import Path

import httpx

from harness.api_world import served, shell
from harness.booking_world import TERMS, furnish
from harness.calendars import shown_events
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, SessionPhase

MAIL = "nora@example.org"


def test_a_person_with_bookings_is_forgotten_when_these_are_cancelled(tmp_path: Path) -> None:
    with served(terms=TERMS) as api:
        furnish(api)
        desk = shell(api, tmp_path, columns=80, TZ="Europe/Berlin")
        slot = ("book", "basics", "--at", "next tuesday 9:00", "--for", "1h")
        desk.out(*slot, "--name", "alone", "--email", MAIL)
        desk.out(*slot, "--name", "routing", "--count", "2", "--email", MAIL, "--email", "ben@example.org")
        would = desk.out("forget", MAIL, "--dry-run")
        assert "not over: LabletSession default/alone" in would
        assert "not over: Reservation default/routing" in would
        refused = desk.lcm("forget", MAIL)
        assert refused.exit_code == 5
        assert "default/alone" in refused.stderr
        told = desk.out("forget", MAIL, "--cancel")
        assert f"{MAIL} is forgotten" in told
        pseudonym = told.split()[-1]

        async def look(plane: Plane) -> tuple[LabletSession | None, Reservation | None]:
            return await plane.get(Ref(LabletSession, "alone")), await plane.get(Ref(Reservation, "routing"))

        session, whole = api.do(look)
        assert session is not None
        assert whole is not None
        assert (session.status.phase, session.spec.student_email) == (SessionPhase.TERMINATED, pseudonym)
        assert whole.spec.student_emails == (pseudonym, "ben@example.org")
        assert "0 documents" in desk.out("forget", MAIL)
        assert desk.lcm("forget", pseudonym).exit_code == 5
        assert shell(api, tmp_path, "ada").lcm("forget", MAIL).exit_code == 5


def test_a_feed_is_made_listed_read_and_revoked(tmp_path: Path) -> None:
    with served(terms=TERMS) as api:
        furnish(api)
        desk = shell(api, tmp_path, columns=100, TZ="Europe/Berlin")
        desk.out("book", "basics", "--at", "next tuesday 9:00", "--for", "1h", "--name", "mine")
        url = desk.out("feed", "create", "--expires", "30d").split()[-1]
        assert len(shown_events(httpx.get(url).raise_for_status().content)) == 1
        listed = desk.out("feed", "list").splitlines()
        assert "own labs" in listed[1]
        assert "feed" in desk.out("token", "list")
        desk.out("feed", "revoke", listed[1].split()[0])
        assert httpx.get(url).status_code == 404
        assert desk.lcm("feed", "revoke", "nope").exit_code == 3
        assert desk.lcm("feed", "create", "nope").exit_code == 5
        assert desk.lcm("feed", "create", "--expires", "900d").exit_code != 0
