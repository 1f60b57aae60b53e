"""Packing in a process of its own: it may compute for a minute, and nothing else may wait for it.

Both ends are here: `pack_in_process` starts `python -m lcm.compose.packing_process`, writes the problem to it, and
reads the answer. The process does with what others leave of the processors, and ends with its answer, or when it is no
longer waited for.
"""

import asyncio
import os
import sys
from typing import Final

import msgspec

from lcm.model.base.errors import Later
from lcm.placement.pack_problem import PackAnswer, PackProblem, solve_packing

LIMIT_SECONDS: Final = 300
"""A packing that takes longer is given up; the steps it may take are counted, so that it never should."""
QUICK_STEPS: Final = 2_000
"""What takes no more steps is done here, within milliseconds."""
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
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Later(f"packing ended with {process.returncode}: {told.decode(errors='replace')[-_LAST_WORDS:]}")
    return msgspec.json.decode(written, type=PackAnswer)


async def _start_process() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=pipe, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        raise Later(f"no process to pack in can be started: {error}") from error


def main() -> None:
    """Read a problem from standard input, and write the answer to standard output."""
    os.nice(_NICE)
    problem = msgspec.json.decode(sys.stdin.buffer.read(), type=PackProblem)
    sys.stdout.buffer.write(msgspec.json.encode(solve_packing(problem)))


if __name__ == "__main__":
    main()
