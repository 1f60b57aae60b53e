"""Those who book labs: most of them for later, some for now, some for a group; some change their minds."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.control.plane.protocol import Extend, ObserveResources, Ref, Terminate
from lcm.model.access.identity import Caller, Role
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import DefinitionState, LabletDefinition
from lcm.model.kinds.reservation import Recurrence, Reservation, ReservationSpec
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionPhase
from lcm.sim.time.chance import Chance
from world.checked import CheckedWorld
from world.checks.hosting import unhostable_is_refused
from world.checks.violation import violation
from world.checks.writes import LOST
from world.people.person import Person
from world.scenarios import definition_name

_EVERY_SECONDS: Final = 900


async def use_lab(world: CheckedWorld, session: LabletSession, dice: Chance) -> None:
    """Use a session's lab once in a while, as long as the session lasts."""
    uid, seen = session.metadata.uid, world.witness.seen
    while (found := seen.sessions.get(uid)) is not None and not seen.is_over(found):
        await asyncio.sleep(dice.expovariate(1 / _EVERY_SECONDS))
        found = seen.sessions.get(uid, found)
        worker = seen.workers.get(found.status.worker_id or "")
        cml = world.stage.cml(worker.status.ec2.instance_id) if worker else None
        if cml is not None and cml.is_up and found.status.phase is SessionPhase.RUNNING:
            cml.telemetry.record("export_lab", lab_id=found.status.cml_lab_id)


PERSONS: Final = 40
_DAY_SECONDS: Final = 86_400
_AHEAD: Final = (15, 30, 60, 120, 240, 480)
_MINUTES: Final = (30, 45, 60, 90, 120, 180)
_SPARE: Final = timedelta(minutes=90)
"""How long before the end of the quiet time every booking is over."""
_LONGEST_EXTENSION: Final = timedelta(minutes=60)
"""The most by which somebody may extend a booking."""


class Visitors(Person):
    """Everybody who books."""

    def __init__(self, world: CheckedWorld, current: Mapping[str, str], name: str = "visitors") -> None:
        super().__init__(world, name)
        self._current = current
        """The definition that is booked for each lab."""
        self._number = 0

    async def book_sessions(self) -> None:
        """Book one lab after the other."""
        mean = _DAY_SECONDS / self.world.scenario.sessions_a_day
        while True:
            await self.wait_about(mean)
            if self.is_late:
                return
            self._number += 1
            who = Caller(name=f"person-{self.dice.randrange(PERSONS)}", role=Role.USER)
            chance = self.dice.random()
            if chance < 0.03:
                self.world.begin(self._book_class(f"r{self._number}", who))
            elif chance < 0.06:
                self.world.begin(self._book_impossible(f"s{self._number}", who))
            elif chance < 0.12 and self.world.scenario.unhostable:
                self.world.begin(self._book_unhostable(f"s{self._number}", who))
            else:
                self.world.begin(self._book_session(f"s{self._number}", who))

    async def _book_session(self, name: str, who: Caller) -> None:
        session = LabletSession(metadata=Metadata(name=name), spec=self._choose_spec())
        made = await self.want(f"book {name}", lambda plane: plane.create(session, request=name), who)
        if made is None:
            return
        if self.dice.random() < 0.1:
            await self._repeat_request(session, made, who)
        if self.dice.random() < 0.6:
            self.world.begin(use_lab(self.world, made, self.dice))
        for change in self._choose_changes():
            await self._change(made, change, who)

    async def _repeat_request(self, session: LabletSession, made: LabletSession, who: Caller) -> None:
        """Send the very same request once more; another session would be one that nobody wanted."""
        name = session.metadata.name
        again = await self.want(f"book {name} again", lambda plane: plane.create(session, request=name), who)
        known = made.metadata.uid in self.witness.seen.sessions
        if again is not None and known and again.metadata.uid != made.metadata.uid:
            self.witness.add_violations([violation(LOST, f"{name} was booked twice by one request", made)])

    def _choose_changes(self) -> list[str]:
        """Return what somebody will do with a session that they have."""
        kinds = {"extend": 0.12, "observe": 0.08, "cancel": 0.12, "delete": 0.04}
        return [what for what, often in kinds.items() if self.dice.random() < often]

    async def _change(self, session: LabletSession, what: str, who: Caller) -> None:
        spec, now = session.spec, self.world.clock.now()
        until = spec.timeslot_end or now + timedelta(minutes=2 * (spec.duration_minutes or 60))
        await asyncio.sleep(max(0.0, (until - now).total_seconds()) * self.dice.random())
        if self.is_late:
            return
        name, ref = session.metadata.name, Ref(LabletSession, session.metadata.name)
        key, minutes = f"{name}-{what}", self.dice.choice((15, 30, 60))
        if what == "delete":
            await self._delete(ref, who)
        elif what == "extend":
            await self.want(f"extend {name}", lambda plane: plane.act(ref, Extend(minutes=minutes), request=key), who)
        elif what == "observe":
            await self.want(f"observe {name}", lambda plane: plane.act(ref, ObserveResources(), request=key), who)
        else:
            await self.want(f"cancel {name}", lambda plane: plane.act(ref, Terminate(), request=key), who)

    async def _delete(self, ref: Ref[LabletSession] | Ref[Reservation], who: Caller) -> None:
        await self.want(f"delete {ref.name}", lambda plane: plane.delete(ref), who, removed=True)

    async def _book_class(self, name: str, who: Caller) -> None:
        start, end = self._choose_slot()
        series = None
        if self.dice.random() < 0.4:
            day = (start + timedelta(days=self.dice.choice((1, 2)))).date()
            series = Recurrence(every="day", until=day, time_zone="Europe/Prague")
        spec = ReservationSpec(
            definition=self._choose_lab(),
            timeslot_start=start,
            timeslot_end=end,
            count=self.dice.choice((2, 3, 5)),
            recurrence=series,
        )
        wanted = Reservation(metadata=Metadata(name=name), spec=spec)
        made = await self.want(f"reserve {name}", lambda plane: plane.create(wanted, request=name), who)
        if made is None or (series is None and self.dice.random() < 0.8):
            return
        rest = self.world.scenario.end - self.world.clock.now()
        await asyncio.sleep(rest.total_seconds() * (1.0 if series else self.dice.random()))
        await self._delete(Ref(Reservation, name), who)

    async def _book_impossible(self, name: str, who: Caller) -> None:
        now, lab = self.world.clock.now(), self._choose_lab()
        hour = timedelta(hours=1)
        specs = (
            LabletSessionSpec(definition="no-such-lab:1.0.0", duration_minutes=60),
            LabletSessionSpec(definition=lab, timeslot_start=now - 2 * hour, timeslot_end=now - hour),
            LabletSessionSpec(definition=lab, timeslot_start=now + hour, timeslot_end=now),
            LabletSessionSpec(definition=lab, duration_minutes=60, resource_limits={"memory": "9000Gi"}),
            LabletSessionSpec(definition=lab, timeslot_start=now + hour, timeslot_end=now + 20 * hour),
            LabletSessionSpec(definition=lab, duration_minutes=60, region_required="eu-north-9"),
        )
        session = LabletSession(metadata=Metadata(name=name), spec=self.dice.choice(specs))
        await self.want(f"book the impossible {name}", lambda plane: plane.create(session, request=name), who)

    async def _book_unhostable(self, name: str, who: Caller) -> None:
        """Book a lab that nobody can host, which may be accepted as long as nobody knows what machines have."""
        lab, asked_at = self.dice.choice(self.world.scenario.unhostable), self.world.clock.now()
        spec = msgspec.structs.replace(self._choose_spec(), definition=definition_name(lab))
        session = LabletSession(metadata=Metadata(name=name), spec=spec)
        made = await self.want(f"book {lab.name} as {name}", lambda plane: plane.create(session, request=name), who)
        if made is not None:
            self.witness.add_violations(unhostable_is_refused(self.witness.seen, lab, asked_at, made))

    def _choose_spec(self) -> LabletSessionSpec:
        if self.dice.random() < 0.3:
            now, minutes = self.world.clock.now(), self._choose_minutes()
            latest = self._deadline() - timedelta(minutes=minutes)
            give_up = max(now + timedelta(minutes=5), min(now + timedelta(hours=2), latest))
            spec = LabletSessionSpec(definition=self._choose_lab(), duration_minutes=minutes, give_up_at=give_up)
            return self._with_wishes(spec)
        start, end = self._choose_slot()
        spec = LabletSessionSpec(definition=self._choose_lab(), timeslot_start=start, timeslot_end=end)
        return self._with_wishes(spec)

    def _with_wishes(self, spec: LabletSessionSpec) -> LabletSessionSpec:
        """Return a booking that perhaps wants a region, or allows a spot machine, where there are several of these."""
        scenario, changes = self.world.scenario, dict[str, object]()
        if len(scenario.regions) > 1 and self.dice.random() < 0.5:
            wish = self.dice.choice(("region_required", "region_preferred"))
            changes[wish] = self.dice.choice(scenario.regions)
        if any(pool.market == "spot" for pool in scenario.pools) and spec.timeslot_start is None:
            changes["allow_spot"] = self.dice.random() < 0.7
        return msgspec.structs.replace(spec, **changes)

    def _choose_slot(self) -> tuple[datetime, datetime]:
        """Choose a slot that is over before the quiet time is."""
        now, long = self.world.clock.now().replace(second=0, microsecond=0), timedelta(minutes=self._choose_minutes())
        start = now + timedelta(minutes=self.dice.choice(_AHEAD))
        start = max(min(start, self._deadline() - long), now + timedelta(minutes=1))
        return start, start + long

    def _choose_minutes(self) -> int:
        room = self._deadline() - self.world.clock.now()
        return self.dice.choice([one for one in _MINUTES if timedelta(minutes=one) < room] or _MINUTES[:1])

    def _deadline(self) -> datetime:
        """Return when the last session that somebody books should be over."""
        scenario = self.world.scenario
        return scenario.end + timedelta(hours=scenario.quiet_hours) - _SPARE - _LONGEST_EXTENSION

    def _choose_lab(self) -> str:
        """Choose a lab; the version before is booked where the newest is lost by a restore."""
        lab = self.dice.choice(self.world.scenario.labs).name
        known = [one for one in self.witness.seen.objects.values() if isinstance(one, LabletDefinition)]
        active = [one for one in known if one.spec.state is DefinitionState.ACTIVE]
        names = [one.metadata.name for one in active if one.metadata.name.startswith(f"{lab}:")]
        return self._current[lab] if self._current[lab] in names or not names else names[-1]
