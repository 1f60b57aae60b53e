"""`lcm drain|undrain|pause|resume|snooze|license|remove-lab`: an operator's actions on workers, and their outcomes.

`lcm pause pool` and `lcm resume pool` are in `cli.fleet.pools`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

import typer

from lcm.cli.documents.wait import parse_duration
from lcm.cli.fleet import pools
from lcm.cli.output import connection, options, render
from lcm.cli.output.batches import Together, act_in_batch, select_objects
from lcm.cli.output.follow import read_all
from lcm.cli.output.nouns import missing, naming_missing, noun_of, title
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Namespace, Selector
from lcm.control.plane.batch import ActionItem, BatchItem
from lcm.control.plane.protocol import (
    Drain,
    License,
    Pause,
    Plane,
    Ref,
    RemoveLab,
    Resume,
    Snooze,
    Undrain,
    WorkerAction,
)
from lcm.model.base.errors import Forbidden, Gone, IllegalStep, LcmError
from lcm.model.base.selector import ObjectSelector, SelectorTerm
from lcm.model.kinds.pool import LabWorkerPool, count_machines, workers_of
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, LicenseFlavour, WorkerPhase, worker_ref
from lcm.system.clock import SystemClock

Workers = Annotated[
    list[str], typer.Argument(metavar="WORKER…", help="Names of workers.", autocompletion=options.complete_workers)
]
WorkersOrPool = Annotated[
    list[str],
    typer.Argument(
        metavar="WORKER… | pool NAME",
        help="Names of workers, or a pool.",
        autocompletion=options.complete_workers,
    ),
]
OutcomeText = Callable[[LabWorker, Sequence[LabletSession], datetime], str]
"""Returns what became of a worker, given the sessions on it."""

_P = WorkerPhase
_STARTING_UP: Final = frozenset({_P.PENDING, _P.PROVISIONING_EC2, _P.EC2_READY, _P.STARTING, _P.LICENSING})
_SHUTTING_DOWN: Final = frozenset({_P.UNLICENSING, _P.STOPPING})
_SHOWN: Final = 3
_ADVICE: Final[Mapping[tuple[str, WorkerPhase], str]] = {
    ("resume", _P.DRAINING): "`lcm undrain {name}` cancels the drain",
    **{("drain", phase): "it takes no sessions yet; `lcm delete worker {name}` removes it" for phase in _STARTING_UP},
    **{("drain", phase): "it has no sessions left" for phase in (*_SHUTTING_DOWN, _P.TERMINATING_EC2)},
    ("drain", _P.STOPPED): "it is stopped and has no sessions; `lcm delete worker {name}` removes it",
    ("drain", _P.FAILED): "`lcm describe worker {name}` shows why; `lcm delete worker {name}` removes it",
    **{("undrain", phase): "it is not being drained" for phase in (*_STARTING_UP, _P.FAILED)},
    **{
        ("undrain", phase): "its drain is over; `lcm resume {name}` starts it again"
        for phase in (*_SHUTTING_DOWN, _P.STOPPED)
    },
}
"""What to do instead, by action and phase."""


def drain(
    workers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORKER…]", help="Names of workers.", autocompletion=options.complete_workers),
    ] = None,
    *,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="TIME",
            help="Longest time that sessions may stay: 30m, 4h; default: as in the worker's spec.",
        ),
    ] = None,
    selector: Selector = "",
    together: Together = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Place no new sessions on workers, wait for the present ones, then return the licence and stop the machine.

    Sessions that are still there at the deadline are ended. `lcm undrain` cancels. Repeat it with
    another --deadline to move the deadline.
    """
    if not (workers or selector):
        raise typer.BadParameter("name workers, or select them with -l", param_hint="WORKER")
    action = Drain(deadline_minutes=_parse_minutes(deadline, "--deadline") if deadline is not None else None)

    async def find(plane: Plane) -> Sequence[BatchItem]:
        refs: list[Ref[LabWorker]] = [Ref(LabWorker, name, namespace) for name in workers or ()]
        refs += await select_objects(plane, noun_of(LabWorker), selector, namespace) if selector else ()
        await _warn_of_surplus(plane, refs, namespace)
        return [
            ActionItem(kind=LabWorker.__name__, name=ref.name, namespace=namespace, action=action)
            for ref in dict.fromkeys(refs)
        ]

    async def describe(plane: Plane, worker: LabWorker) -> str:
        return _drain_outcome(worker, await sessions_on_worker(plane, worker), SystemClock().now())

    async def explain(plane: Plane, ref: Ref[LabWorker], error: LcmError) -> LcmError:
        return missing(ref) if isinstance(error, Gone) else await _explain_illegal(plane, ref, action, error)

    act_in_batch(find, describe, explain, context, together=together, dry_run=dry_run)


def undrain(
    workers: Workers, *, namespace: Namespace = DEFAULT_NAMESPACE, dry_run: DryRun = False, context: ContextName = None
) -> None:
    """Cancel a drain: workers take sessions again."""
    _act(workers, Undrain(), _undrain_outcome, namespace, context, dry_run=dry_run)


def pause(
    workers: WorkersOrPool,
    *,
    until: pools.Until = None,
    promises: pools.PromisesOption = pools.Promises.KEEP,
    yes: pools.Yes = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Stop workers' machines once no session is on them; disks and licences are kept. `lcm resume` cancels.

    With `pool NAME`, nothing is started in a pool but what was promised, until a moment.
    """
    pool = pools.parse_pool(workers, namespace)
    if pool is not None:
        pools.pause_pool(pool, until, promises, context, dry_run=dry_run, yes=yes)
        return
    if until is not None or promises is not pools.Promises.KEEP:
        raise typer.BadParameter("--until and --promises are for pools: `lcm pause pool NAME`", param_hint="WORKER…")
    _act(workers, Pause(), _pause_outcome, namespace, context, dry_run=dry_run)


def resume(
    workers: WorkersOrPool,
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Start workers' machines again, or cancel a pending pause. With `pool NAME`, end the pause of a pool."""
    pool = pools.parse_pool(workers, namespace)
    if pool is not None:
        pools.resume_pool(pool, context, dry_run=dry_run)
        return
    _act(workers, Resume(), _resume_outcome, namespace, context, dry_run=dry_run)


def snooze(
    workers: Workers,
    *,
    span: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Duration: 30m, 2h; default: as in the worker's spec.")
    ] = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Keep idle workers running for a while."""
    minutes = _parse_minutes(span, "--for") if span is not None else None
    _act(workers, Snooze(minutes=minutes), _snooze_outcome, namespace, context, dry_run=dry_run)


def license_(
    workers: Workers,
    *,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", metavar="REF", help="Reference to the token: env:NAME, file:/path, aws:name; default: unchanged."
        ),
    ] = None,
    flavour: Annotated[
        LicenseFlavour | None, typer.Option("--flavour", help="Licence flavour; default: unchanged.")
    ] = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Register CML on workers again, with the same or another token and flavour."""
    action = License(license_token=token, license_flavour=flavour)
    _act(workers, action, _license_outcome, namespace, context, dry_run=dry_run)


def remove_lab(
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", help="Name of the worker.", autocompletion=options.complete_workers)
    ],
    lab: Annotated[str, typer.Argument(metavar="LAB", help="The lab's id on CML, as the alert names it.")],
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Remove a lab that carries our mark, but whose session is unknown, such as one booked after a restored backup.

    It is collected once more first. Without this, such a lab is held for a week. To keep it, rename it on CML.
    """
    _act(
        [worker],
        RemoveLab(lab_id=lab),
        lambda one, _, __: _removal_outcome(one, lab),
        namespace,
        context,
        dry_run=dry_run,
    )


def _parse_minutes(text: str, hint: str) -> int:
    minutes = math.ceil(parse_duration(text, hint) / timedelta(minutes=1))
    if minutes < 1:
        raise typer.BadParameter("must be at least one minute", param_hint=hint)
    return minutes


def _act(
    workers: Sequence[str],
    action: WorkerAction,
    outcome_text: OutcomeText,
    namespace: str,
    context: str | None,
    *,
    dry_run: bool,
) -> None:
    async def act(plane: Plane, name: str) -> str:
        worker = await _perform(plane, Ref(LabWorker, name, namespace), action, dry_run=dry_run)
        return outcome_text(worker, await sessions_on_worker(plane, worker), SystemClock().now())

    connection.act_on_each(dict.fromkeys(workers), act, context, dry_run=dry_run)


async def _warn_of_surplus(plane: Plane, refs: Sequence[Ref[LabWorker]], namespace: str) -> None:
    """Print before a drain which pools may then run more machines than their max_workers."""
    try:
        found = await read_all(plane, LabWorkerPool, namespace=namespace)
        workers = await read_all(plane, LabWorker, namespace=namespace)
    except Forbidden:
        return  # whoever may not see them may not drain one either
    names = {ref.name for ref in refs}
    for pool in found.items:
        machines, most = count_machines(workers_of(pool, workers.items)), pool.spec.max_workers
        for seat in pool.status.seats if machines >= most else ():
            if seat.worker_name in names:
                render.print_message(
                    f"pool/{pool.metadata.name} runs {machines} of at most {most} machines: if its planned worker"
                    f" {seat.number} is needed before {seat.worker_name} has been drained, it runs {machines + 1}"
                )


async def _perform(plane: Plane, ref: Ref[LabWorker], action: WorkerAction, *, dry_run: bool) -> LabWorker:
    try:
        with naming_missing(ref):
            return await plane.act(ref, action, dry_run=dry_run)
    except IllegalStep as error:
        raise await _explain_illegal(plane, ref, action, error) from error


async def _explain_illegal(plane: Plane, ref: Ref[LabWorker], action: WorkerAction, error: LcmError) -> LcmError:
    """Return what to do instead of an action that a worker's phase does not have; other errors as they are."""
    worker = await plane.get(ref) if isinstance(error, IllegalStep) else None
    if worker is None:
        return error
    verb = str(type(action).__struct_config__.tag)
    advice = _ADVICE.get((verb, worker.status.phase), "`lcm story worker {name}` shows what happened to it")
    message = f"worker/{ref.name} is {worker.status.phase}: {verb} is not possible; {advice.format(name=ref.name)}"
    return IllegalStep(message)


async def sessions_on_worker(plane: Plane, worker: LabWorker) -> Sequence[LabletSession]:
    """Return the sessions that a worker has or will have; none for a caller who may not see them."""
    where = ObjectSelector(fields=(SelectorTerm("status.worker_ref", (worker_ref(worker),)),))
    try:
        found = await read_all(plane, LabletSession, where=where)
    except Forbidden:
        return []
    return [one for one in found.items if one.status.phase not in SESSION_MACHINE.final]


def _drain_outcome(worker: LabWorker, sessions: Sequence[LabletSession], now: datetime) -> str:
    name, deadline = worker.metadata.name, worker.status.drain_deadline_at
    licence = "" if worker.status.cml.licensed is False else "its licence is returned and "
    then = f"{licence}its machine is {'terminated' if worker.metadata.deletion_timestamp else 'stopped'}"
    if not sessions:
        return f"{title(worker)} drains: it has no sessions, so {then} now\n  `lcm undrain {name}` cancels"
    until = render.format_relative(deadline, now) if deadline else "they are over"
    return (
        f"{title(worker)} drains: it takes no new sessions, and waits for {format_sessions(sessions)} until {until}\n"
        f"  then {then}; `lcm undrain {name}` cancels, `lcm drain {name} --deadline TIME` moves the deadline"
    )


def _undrain_outcome(worker: LabWorker, _: Sequence[LabletSession], __: datetime) -> str:
    return f"{title(worker)} is {worker.status.phase} and takes sessions"


def _pause_outcome(worker: LabWorker, sessions: Sequence[LabletSession], _: datetime) -> str:
    name, phase = worker.metadata.name, worker.status.phase
    cancel = f"\n  `lcm resume {name}` cancels, or starts it again"
    if phase is _P.STOPPED:
        return f"{title(worker)} is stopped; `lcm resume {name}` starts it"
    if phase is _P.FAILED:
        return f"{title(worker)} has failed and will not be started; `lcm describe worker {name}` shows why"
    if phase not in HOSTING_PHASES:
        return f"{title(worker)} is {phase} and will be stopped" + cancel
    if sessions:
        return f"{title(worker)} will be stopped after {format_sessions(sessions)}{cancel}"
    return f"{title(worker)} has no sessions: its machine stops now{cancel}"


def _resume_outcome(worker: LabWorker, _: Sequence[LabletSession], __: datetime) -> str:
    name, phase = worker.metadata.name, worker.status.phase
    goal = _P.READY if worker.spec.cml.license_token or worker.spec.host_kind == "container" else _P.READY_UNLICENSED
    follow = f"\n  `lcm wait worker {name} --for phase={goal}` waits for it"
    if phase in HOSTING_PHASES:
        return f"{title(worker)} runs ({phase}) and stays running until it is idle"
    if phase is _P.STOPPED:
        return f"{title(worker)} starts: its machine boots now, and CML takes some minutes{follow}"
    return f"{title(worker)} is {phase} and will be started{follow}"


def _snooze_outcome(worker: LabWorker, _: Sequence[LabletSession], now: datetime) -> str:
    idle = worker.status.idle
    until = idle.snoozed_until if idle else None
    if not worker.spec.idle.enabled:
        return f"{title(worker)} is never paused for being idle: its spec has idle.enabled: false"
    assert until is not None, "a snooze lasts until some moment"
    end = f"`lcm snooze {worker.metadata.name} --for 1m` ends that sooner"
    return f"{title(worker)} is not paused for being idle before {render.format_relative(until, now)}; {end}"


def _license_outcome(worker: LabWorker, _: Sequence[LabletSession], __: datetime) -> str:
    cml, name = worker.spec.cml, worker.metadata.name
    if worker.status.cml.licensed and worker.status.phase in HOSTING_PHASES:
        return f"{title(worker)} is licensed; the token is used at its next registration"
    wait = f"`lcm wait worker {name} --for condition=Licensed` waits for it"
    return f"{title(worker)} will register as {cml.license_flavour} when CML is up and it has no sessions\n  {wait}"


def _removal_outcome(worker: LabWorker, lab: str) -> str:
    return f"lab {lab} on {title(worker)} is collected and removed within a quarter of an hour"


def format_sessions(sessions: Sequence[LabletSession]) -> str:
    """Format how many sessions there are, with the names of the first."""
    shown = render.join_some([one.metadata.name for one in sessions], _SHOWN)
    return f"{len(sessions)} session{'' if len(sessions) == 1 else 's'} ({shown})"
