"""Puts the built pages into a wheel, and the commit that it is made of. Called by hatchling, when it builds one.

Without git, the variable LCM_COMMIT names the commit; without both, the build is known by its version only. Where Node
cannot be had, build the pages elsewhere (`make pages`) and copy `src/lcm/api/pages`: what is built is not built again.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface):
    """Builds `lcm/api/pages`, and adds the file `lcm/commit.txt`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Do both, unless the install is editable: then the working copy itself has the pages, and says where it is."""
        if version == "editable":
            return
        subprocess.run([sys.executable, Path(self.root) / "tools" / "pages.py", "build"], check=True)
        commit = os.environ.get("LCM_COMMIT") or self._ask_git()
        if not commit:
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
