"""How one command looks to a person: its usage and its options. `main` and groups of commands make theirs of it."""

from typing import TYPE_CHECKING

from typer.core import TyperArgument, TyperCommand

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter
    from typer.core import TyperOption


class OneCommand(TyperCommand):
    """One command, whose usage names its arguments as they are meant."""

    def get_help_option(self, ctx: "Context") -> "TyperOption | None":
        """Give `--help` as typer makes it."""
        return not_given(super().get_help_option(ctx))

    def collect_usage_pieces(self, ctx: "Context") -> list[str]:
        """Write how the command is called."""
        return ["[OPTIONS]", *(_metavar(one) for one in self.get_params(ctx) if isinstance(one, TyperArgument))]

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write what arguments and options mean."""
        params = self.get_params(ctx)
        arguments = [(_metavar(one), one.help) for one in params if isinstance(one, TyperArgument) and one.help]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        with formatter.section("Options"):
            records = (one.get_help_record(ctx) for one in params if not isinstance(one, TyperArgument))
            formatter.write_dl([record for record in records if record])


def _metavar(argument: TyperArgument) -> str:
    return argument.metavar or argument.name.upper()


def not_given(option: "TyperOption | None") -> "TyperOption | None":
    """Let a flag that was not given be False; for None typer would load pydantic, which takes longer than all else."""
    if option is not None:
        option.default = False
    return option
