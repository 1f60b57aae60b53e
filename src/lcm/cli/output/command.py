"""How a single command shows its usage and options, `lcm completion` and `lcm version`.

`cli.main` and groups of commands make their commands of LeafCommand. A shell's completion script calls `lcm` itself
with what has been typed so far.
"""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperArgument, TyperCommand
from typer.main import get_command

from lcm.cli.output import render
from lcm.cli.output.zone import choose_zone

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter
    from typer.core import TyperOption


def use_utc(utc: bool) -> None:  # noqa: FBT001 - the value of a flag
    """Show times in UTC if the flag `--utc` is set."""
    if utc:
        choose_zone("UTC")


Utc = Annotated[
    bool,
    typer.Option(
        "--utc",
        callback=use_utc,
        expose_value=False,
        help="Read and show times in UTC; default: LCM_TZ, else your time zone.",
    ),
]


def _shared_options(*, utc: Utc = False) -> None:
    """Declare the options of every command; its parameters are read, and it is never called."""


class LeafCommand(TyperCommand):
    """A single command. Its usage line shows each argument's metavar, and `--utc` is among its options."""

    def __init__(self, *args: Any, **attributes: Any) -> None:  # noqa: ANN401 - typer's own arguments
        super().__init__(*args, **attributes)
        shared = typer.Typer(add_completion=False)
        shared.command()(_shared_options)
        self.params += get_command(shared).params

    def get_help_option(self, ctx: "Context") -> "TyperOption | None":
        """Return typer's `--help` option with a default of False."""
        return default_to_false(super().get_help_option(ctx))

    def collect_usage_pieces(self, ctx: "Context") -> list[str]:
        """Return the parts of the usage line."""
        return ["[OPTIONS]", *(_metavar(one) for one in self.get_params(ctx) if isinstance(one, TyperArgument))]

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the help of arguments and options."""
        params = self.get_params(ctx)
        arguments = [(_metavar(one), one.help) for one in params if isinstance(one, TyperArgument) and one.help]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        with formatter.section("Options"):
            records = (one.get_help_record(ctx) for one in params if not isinstance(one, TyperArgument))
            formatter.write_dl([record for record in records if record])


def make_group(name: str, summary: str, *, alone: bool = False) -> typer.Typer:
    """Make a group of commands. Without a command it shows its help; if it can stand `alone`, its callback runs."""
    return typer.Typer(
        name=name,
        help=summary,
        no_args_is_help=not alone,
        invoke_without_command=alone,
        add_completion=False,
        rich_markup_mode=None,
    )


def _metavar(argument: TyperArgument) -> str:
    return argument.metavar or argument.name.upper()


def default_to_false(option: "TyperOption | None") -> "TyperOption | None":
    """Set a flag's default to False.

    With a default of None typer loads pydantic, which takes longer than everything else at start.
    """
    if option is not None:
        option.default = False
    return option


class Shell(StrEnum):
    """Supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_BASH: Final = """\
_lcm_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" words current
    read -r -a words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    current="${words[-1]}"
    local IFS=$'\\n'
    COMPREPLY=( $(COMP_WORDS="${words[*]}" COMP_CWORD=$(( ${#words[@]} - 1 )) _LCM_COMPLETE=complete_bash "$1") )
    # bash takes a colon for the end of a word, and names with versions have one
    if [[ "$current" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        COMPREPLY=( "${COMPREPLY[@]#"${current%"${current##*:}"}"}" )
    fi
}
complete -o default -F _lcm_completion lcm
"""


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish")]) -> None:
    """Print a script that completes commands and names.

    bash: write `source <(lcm completion bash)` into ~/.bashrc

    zsh: `lcm completion zsh > ~/.zfunc/_lcm`, with that folder in fpath

    fish: `lcm completion fish > ~/.config/fish/completions/lcm.fish`
    """
    if shell is Shell.BASH:
        render.print_line(_BASH.rstrip("\n"))
        return
    from typer._completion_shared import get_completion_script  # noqa: PLC0415 - only this command needs it

    render.print_line(get_completion_script(prog_name="lcm", complete_var="_LCM_COMPLETE", shell=shell))


def version() -> None:
    """Print the version and the commit that it was built from."""
    from lcm.system.build import build_name  # noqa: PLC0415 - few commands need it

    sys.stdout.write(f"{build_name()}\n")


def print_version(wanted: bool) -> None:  # noqa: FBT001 - the value of a flag
    """Print the version and end the command if the flag `--version` is set."""
    if wanted:
        version()
        raise typer.Exit
