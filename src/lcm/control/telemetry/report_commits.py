"""Commits of measurements: reports that come within a moment, or while others are being committed, share a commit.

A thousand workers are measured every minute, and to the store a commit costs more than what is in it. Reports are
independent of each other: where one of several does not fit the state of the store any more, each is tried alone. Used
by `control.telemetry.reports`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lcm.control.objects.writer import Writer
from lcm.model.base.errors import Conflict, LcmError, TooLarge
from lcm.store.base import MAX_BYTES, MAX_OPERATIONS, Fence, Op, Put

_MOST_OPERATIONS: Final = MAX_OPERATIONS - 8
_MOST_BYTES: Final = MAX_BYTES // 2
_COMPANY_SECONDS: Final = 0.05
"""How long a report waits for others: workers that are measured at the same moment answer at about the same time."""


@dataclass(eq=False, slots=True)
class _Report:
    """What is to be committed about one worker."""

    ops: Sequence[Op]
    events: Sequence[bytes]
    is_committed: bool = False
    is_alone: bool = False
    """Whether it shares no commit, because one that it shared conflicted."""
    error: LcmError | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is known how it ended."""
        return self.is_committed or self.error is not None

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return sum(map(len, self.events)) + sum(len(op.value) for op in self.ops if isinstance(op, Put))


class ReportCommits:
    """Commits reports, those under the same fence together. Nothing runs while nobody waits for a commit."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Fence | None, list[_Report]] = defaultdict(list)
        self._turns: defaultdict[Fence | None, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def submit(self, writer: Writer, ops: Sequence[Op], events: Sequence[bytes]) -> None:
        """Commit one report, maybe together with others. Raises what `Writer.submit` raises."""
        mine, fence = _Report(ops, events), writer.fence
        self._waiting[fence].append(mine)
        try:
            while not mine.is_settled:
                async with self._turns[fence]:
                    if not mine.is_settled:
                        await asyncio.sleep(0 if mine.is_alone else _COMPANY_SECONDS)
                        await self._commit_several(writer, self._choose(mine, self._waiting[fence]))
        finally:
            self._leave(fence, mine)
        if mine.error is not None:
            raise mine.error

    @staticmethod
    def _choose(mine: _Report, waiting: Sequence[_Report]) -> Sequence[_Report]:
        """Return a report, and others that wait and fit into the same commit."""
        chosen, keys, size = [mine], {op.key for op in mine.ops}, mine.size
        for other in () if mine.is_alone else waiting:
            own = {op.key for op in other.ops}
            if other.is_alone or other.is_settled or own & keys:
                continue
            size += other.size
            if size > _MOST_BYTES or len(keys) + len(own) > _MOST_OPERATIONS:
                break
            chosen.append(other)
            keys |= own
        return chosen

    async def _commit_several(self, writer: Writer, several: Sequence[_Report]) -> None:
        ops = [op for one in several for op in one.ops]
        try:
            await writer.submit(ops, [event for one in several for event in one.events], deeds=())
        except (Conflict, TooLarge) as error:
            for one in several:
                one.is_alone = True
            if len(several) == 1:
                several[0].error = error
        except LcmError as error:
            for one in several:
                one.error = error
        else:
            for one in several:
                one.is_committed = True

    def _leave(self, fence: Fence | None, mine: _Report) -> None:
        self._waiting[fence].remove(mine)
        if not self._waiting[fence]:
            del self._waiting[fence], self._turns[fence]
