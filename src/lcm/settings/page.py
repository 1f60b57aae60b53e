"""Every variable as one Markdown page: `python -m lcm.settings.page` writes docs/configuration.md."""

import sys
from collections.abc import Iterator
from typing import Final

from lcm.settings.load import RUNTIME_FIELDS, format_value
from lcm.settings.sources import Variable, describe_type
from lcm.settings.values import HEADINGS, OTHER_VARIABLES, VARIABLES

_INTRODUCTION: Final = """\
# Configuration

Made from the tables in `lcm.settings.values` by `make docs`; a test compares.

A value is taken from the first of these that sets it: the SystemSettings object (`lcm get settings -o yaml`; at run
time, for the variables that have a field there), the environment, the file, the default. `lcm doctor` shows every
value and where it was set; of passwords, tokens and keys only whether they are set.

The file is TOML: `LCM_CONFIG` names it, else it is `lcm.toml` in the working folder, else `/etc/lcm/lcm.toml`. Its keys
are the variables' names in any case, its lists are lists; in the environment lists are separated by commas, and an
empty variable counts as not set.

```toml
log_level = "INFO"
worker_discovery_regions = ["us-east-1", "eu-central-1"]
```

A bad value, an unknown key and a mis-spelt `LCM_` variable stop the start, and all of them are listed at once."""
_COLUMNS: Final = "| variable | meaning | value | default | in SystemSettings |\n| --- | --- | --- | --- | --- |"
_OTHER_HEADING: Final = "\n## Not in the file\n\n| variable | meaning |\n| --- | --- |"


def render_page() -> str:
    """Return the whole page as Markdown."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_variable_rows(),
            _OTHER_HEADING,
            *(f"| `{name}` | {text} |" for name, text in OTHER_VARIABLES.items()),
            "",
        ]
    )


def _variable_rows() -> Iterator[str]:
    fields = {field: path for path, field in RUNTIME_FIELDS.items()}
    for one in VARIABLES:
        if one.field in HEADINGS:
            yield f"\n## {HEADINGS[one.field]}\n\n{_COLUMNS}"
        path = fields.get(one.field)
        value = f"{describe_type(one.hint)}; a secret" if one.secret else describe_type(one.hint)
        yield f"| {_name_cell(one)} | {one.meaning} | {value} | {_default_cell(one)} | {f'`{path}`' if path else ''} |"


def _name_cell(one: Variable) -> str:
    return ", also ".join(f"`{name}`" for name in one.names)


def _default_cell(one: Variable) -> str:
    return "" if one.default in (None, ()) else f"`{format_value(one.default)}`"


if __name__ == "__main__":
    sys.stdout.write(render_page())
