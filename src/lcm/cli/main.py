"""`lcm`: the entry of the command line.

COMMANDS maps each command to its function. A command's module is loaded only when that command is used, so that
help and completion stay fast.
"""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from typer._click.exceptions import UsageError
from typer.core import TyperGroup
from typer.main import get_command

from lcm.cli.output.command import LeafCommand, Utc, default_to_false, print_version
from lcm.cli.output.render import wrap_message
from lcm.model.base.errors import LcmError

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem
    from typer.core import TyperOption


class CommandEntry(NamedTuple):
    """Where a command's function is, its help in one line, and its section of the help page."""

    target: str
    help: str
    section: str


_ERROR: Final = "Error: "
"""What typer writes before what it says about wrong usage."""
_SEE, _CHANGE, _RUN, _OWN = "See", "Change", "Run", "This command line"
COMMANDS: Final[Mapping[str, CommandEntry]] = {
    "get": CommandEntry("lcm.cli.documents.get:get", "List objects, or follow them; show the calendar.", _SEE),
    "describe": CommandEntry("lcm.cli.documents.describe:describe", "Show everything about an object.", _SEE),
    "story": CommandEntry(
        "lcm.cli.documents.describe:story", "Show an object's phases, their durations and reasons.", _SEE
    ),
    "explain": CommandEntry(
        "lcm.cli.booking.explain:explain", "Show why a session is where it is or waits; why a pool scales.", _SEE
    ),
    "logs": CommandEntry("lcm.cli.documents.describe:logs", "Print a session's history and decisions as lines.", _SEE),
    "artifacts": CommandEntry(
        "lcm.cli.booking.artifacts:artifacts", "List or download the files collected from a session.", _SEE
    ),
    "hand-out": CommandEntry("lcm.cli.booking.hand_out:hand_out", "Print who goes where in a class.", _SEE),
    "connect": CommandEntry("lcm.cli.booking.connect:connect", "Open a console of a session in this terminal.", _SEE),
    "observe": CommandEntry(
        "lcm.cli.booking.observe:observe", "Show what labs really use, and update definitions.", _SEE
    ),
    "wait": CommandEntry("lcm.cli.documents.wait:wait", "Wait until an object reaches a state.", _SEE),
    "events": CommandEntry("lcm.cli.fleet.events:events", "Show recent events, or follow new ones.", _SEE),
    "audit": CommandEntry("lcm.cli.fleet.audit:audit", "List who changed what, when and from where.", _SEE),
    "alerts": CommandEntry("lcm.cli.fleet.licenses:alerts", "List open alerts.", _SEE),
    "quota": CommandEntry("lcm.cli.fleet.quota:quota", "Show what may be booked and is left; grant more.", _SEE),
    "plan": CommandEntry("lcm.cli.booking.plan:plan_", "Simulate a timetable before it is booked.", _SEE),
    "record": CommandEntry("lcm.cli.booking.record:record", "Write a past day as a timetable for `lcm plan`.", _SEE),
    "cost": CommandEntry("lcm.cli.fleet.costs:cost", "Show what sessions cost, by owner, class, track and more.", _SEE),
    "licenses": CommandEntry("lcm.cli.fleet.licenses:app", "List licence seats; free orphaned ones.", _SEE),
    "book": CommandEntry("lcm.cli.booking.book:book", "Book a lab: now, later, for several, or repeatedly.", _CHANGE),
    "move": CommandEntry("lcm.cli.booking.classes:move", "Move a class or a session to another time.", _CHANGE),
    "extend": CommandEntry("lcm.cli.booking.extend:extend", "Make a session or a class end later.", _CHANGE),
    "skip": CommandEntry("lcm.cli.booking.classes:skip", "Leave out an occurrence of a class.", _CHANGE),
    "resize": CommandEntry("lcm.cli.booking.classes:resize", "Change how many seats a class has.", _CHANGE),
    "learners": CommandEntry("lcm.cli.booking.classes:learners", "Name the learners of a class.", _CHANGE),
    "swap": CommandEntry("lcm.cli.booking.classes:swap", "Let two learners swap their seats.", _CHANGE),
    "save": CommandEntry("lcm.cli.booking.save:save", "Save a running lab, to continue from it later.", _CHANGE),
    "cancel": CommandEntry("lcm.cli.booking.extend:cancel", "Cancel sessions or reservations.", _CHANGE),
    "invite": CommandEntry("lcm.cli.people.token:invite", "Print a link for the learner of a session.", _CHANGE),
    "apply": CommandEntry("lcm.cli.documents.apply:apply", "Create or change objects from files.", _CHANGE),
    "label": CommandEntry("lcm.cli.documents.batch:label", "Set labels of objects.", _CHANGE),
    "batch": CommandEntry("lcm.cli.documents.batch:batch", "Do many things in one call, as a file says.", _CHANGE),
    "delete": CommandEntry("lcm.cli.documents.delete:delete", "Delete objects.", _CHANGE),
    "drain": CommandEntry(
        "lcm.cli.fleet.workers:drain", "Take a worker out of service: no new sessions, then stop it.", _CHANGE
    ),
    "undrain": CommandEntry("lcm.cli.fleet.workers:undrain", "Cancel a drain.", _CHANGE),
    "pause": CommandEntry(
        "lcm.cli.fleet.workers:pause", "Stop a worker once it has no sessions; pause a pool.", _CHANGE
    ),
    "resume": CommandEntry("lcm.cli.fleet.workers:resume", "Start a paused worker, or end a pool's pause.", _CHANGE),
    "scale": CommandEntry("lcm.cli.fleet.pools:scale", "Change how many workers a pool may have.", _CHANGE),
    "snooze": CommandEntry("lcm.cli.fleet.workers:snooze", "Keep an idle worker running for a while.", _CHANGE),
    "remove-lab": CommandEntry("lcm.cli.fleet.workers:remove_lab", "Remove a held lab of an unknown session.", _CHANGE),
    "license": CommandEntry("lcm.cli.fleet.workers:license_", "Register a worker's CML again.", _CHANGE),
    "forget": CommandEntry("lcm.cli.people.forget:forget", "Remove a person's data (administrators only).", _CHANGE),
    "secret": CommandEntry("lcm.cli.people.secret:app", "Encrypt secrets for documents, and change the key.", _CHANGE),
    "sink": CommandEntry("lcm.cli.fleet.sink:app", "Set where events are sent; resend failed ones.", _CHANGE),
    "up": CommandEntry("lcm.cli.server.up:up", "Run everything in this process.", _RUN),
    "serve": CommandEntry("lcm.cli.server.serve:serve", "Run one part, such as the API.", _RUN),
    "backup": CommandEntry("lcm.cli.server.backup:backup", "Write a backup of the whole store to a file.", _RUN),
    "restore": CommandEntry("lcm.cli.server.backup:restore", "Replace the whole store by a backup.", _RUN),
    "doctor": CommandEntry(
        "lcm.cli.fleet.doctor:doctor", "Check this installation; show where each setting is from.", _RUN
    ),
    "cml-sim": CommandEntry("lcm.cli.server.cml_sim:cml_sim", "Run a simulated CML for any CML client.", _RUN),
    "context": CommandEntry("lcm.cli.people.context:app", "Set which API to use, and with which token.", _OWN),
    "token": CommandEntry("lcm.cli.people.token:app", "Create, list and revoke tokens.", _OWN),
    "feed": CommandEntry("lcm.cli.people.feed:app", "Subscribe a calendar program to your labs or a class.", _OWN),
    "sign-in": CommandEntry("lcm.cli.people.token:sign_in", "Print a link that signs a browser in.", _OWN),
    "completion": CommandEntry(
        "lcm.cli.output.command:completion", "Print a script that completes commands and names.", _OWN
    ),
    "version": CommandEntry("lcm.cli.output.command:version", "Print the version.", _OWN),
}


class Commands(TyperGroup):
    """The group of all commands. Help and completion come from the COMMANDS table, so no command is loaded for them."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - typer's own keywords
        super().__init__(**attributes)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # only the names are read

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - typer's own arguments
        """Run the command line that was typed, or complete it for a shell."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
        if "_LCM_COMPLETE" in os.environ:
            from typer._completion_classes import completion_init  # noqa: PLC0415 - only a shell needs it

            completion_init()
        return super().main(*args, **extra)

    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":  # noqa: ARG002 - typer's signature
        """Load one command by its name; None means there is no such command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.command(cmd_name, cls=LeafCommand)(found)
            found = single
        return get_command(found)

    def get_help_option(self, ctx: "Context") -> "TyperOption | None":
        """Return typer's `--help` option with a default of False."""
        return default_to_false(super().get_help_option(ctx))

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:  # noqa: ARG002 - likewise
        """Write the table of commands, section by section."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                rows = [(name, entry.help) for name, entry in COMMANDS.items() if entry.section == section]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: "Context", incomplete: str) -> "list[CompletionItem]":  # noqa: ARG002 - likewise
        """Complete a command's name."""
        from typer._click.shell_completion import CompletionItem  # noqa: PLC0415 - only a shell needs it

        found = ((name, entry) for name, entry in COMMANDS.items() if name.startswith(incomplete))
        return [CompletionItem(name, help=entry.help) for name, entry in found]

    def invoke(self, ctx: "Context") -> Any:  # noqa: ANN401 - whatever a command returns
        """Run a command and turn an LcmError into a message and an exit code; wrong usage is told in lines that fit."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            told = wrap_message(f"{_ERROR}{error.format_message()}").removeprefix(_ERROR)
            raise UsageError(told, error.ctx) from error
        except LcmError as error:
            from lcm.cli.output import exit_codes  # noqa: PLC0415 - loaded only after an error

            raise typer.Exit(exit_codes.report_error(error)) from error


app = typer.Typer(
    cls=Commands,
    name="lcm",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`lcm COMMAND --help` shows the options of a command.",
)


@app.callback(help="Lablet Cloud Manager: labs on fleets of CML hypervisors, on time.")
def _lcm(
    *,
    utc: Utc = False,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, expose_value=False, help="Print the version."),
    ] = False,
) -> None:
    """Make `lcm` a group of commands."""


if __name__ == "__main__":
    app(prog_name="lcm")
