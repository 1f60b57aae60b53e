"""`lcm completion`: scripts for shells. The shell then calls `lcm` itself with what has been typed so far."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from lcm.cli import render

_VARIABLE: Final = "_LCM_COMPLETE"


class Shell(StrEnum):
    """Shells that are known."""

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
        render.out(_BASH.rstrip("\n"))
        return
    from typer._completion_shared import get_completion_script  # noqa: PLC0415 - only this command needs it

    render.out(get_completion_script(prog_name="lcm", complete_var=_VARIABLE, shell=shell))
