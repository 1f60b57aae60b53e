"""How hard the crash tests try: once for `make test`, many times over for `make chaos`."""

import os

TIMES = int(os.environ.get("LCM_CHAOS", "1"))
