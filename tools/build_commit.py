"""Puts the commit that a wheel is made of into it. Called by hatchling, when it builds one.

Without git, the variable LCM_COMMIT names the commit; without both, the build is known by its version only.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds the file `lcm/commit.txt`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file, unless the install is editable: then the working copy itself says where it is."""
        commit = os.environ.get("LCM_COMMIT") or self._ask_git()
        if version == "editable" or not commit:
            return
        file = Path(self.directory) / "commit.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(commit + "\n", encoding="ascii")
        build_data["force_include"][str(file)] = "lcm/commit.txt"

    def _ask_git(self) -> str:
        try:
            found = subprocess.run(
                ["git", "rev-parse", "HEAD"],  # noqa: S607 - whichever git the builder uses
                cwd=self.root,
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        return found.stdout.strip()
