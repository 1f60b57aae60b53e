"""Packing in a process of its own: it may compute for a minute, and nothing else may wait for it.

Both ends are here: `pack_in_process` starts `python -m lcm.compose.packing_process`, writes the problem to it, and
reads the answer. The process does with what others leave of the processors, and ends with its answer, or when it is no
longer waited for.
"""

import asyncio
import os
import sys
from contextlib import suppress
from typing import Final

import msgspec

from lcm.model.base.errors import Later
from lcm.placement.pack_problem import PackAnswer, PackProblem, solve_packing
from lcm.system.child_process import child_environment, exit_with_parent

LIMIT_SECONDS: Final = 300
"""A packing that takes longer is given up; the steps it may take are counted, so that it never should."""
QUICK_STEPS: Final = 2_000
"""What takes no more steps is done here, within milliseconds."""
_COMMAND: Final = (sys.executable, "-P", "-m", "lcm.compose.packing_process")
_NICE: Final = 10
_LAST_WORDS: Final = 500


async def pack_in_process(problem: PackProblem) -> PackAnswer:
    """Solve a problem, in another process unless it is small; raise Later if that fails or takes too long."""
    if problem.steps <= QUICK_STEPS:
        return solve_packing(problem)
    process = await _start_process()
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            written, told = await process.communicate(msgspec.json.encode(problem))
    except TimeoutError:
        raise Later(f"packing {len(problem.claims)} claims took longer than {LIMIT_SECONDS} s") from None
    finally:
        await _end_process(process)
    if process.returncode:
        raise Later(f"packing ended with {process.returncode}: {told.decode(errors='replace')[-_LAST_WORDS:]}")
    try:
        return msgspec.json.decode(written, type=PackAnswer)
    except msgspec.MsgspecError as error:
        raise Later(f"the answer of the process that packs was not understood: {error}") from error


async def _start_process() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *_COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, env=child_environment()
        )
    except OSError as error:
        raise Later(f"no process to pack in can be started: {error}") from error


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """End a process that still runs, and read what it wrote: before that, waiting for it does not end."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def main() -> None:
    """Read a problem from standard input, and write the answer to standard output."""
    exit_with_parent()
    os.nice(_NICE)
    problem = msgspec.json.decode(sys.stdin.buffer.read(), type=PackProblem)
    sys.stdout.buffer.write(msgspec.json.encode(solve_packing(problem)))


if __name__ == "__main__":
    main()
