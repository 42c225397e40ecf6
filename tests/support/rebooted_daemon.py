"""The daemon as if the machine had been started anew: TEST_BOOT_ID names the boot.

Run as a script with the arguments of `edgehub`. The time of day comes from libfaketime.
"""

from __future__ import annotations

import os

from edgehub.cli.main import main
from edgehub.clock import SystemClock

SystemClock.boot_id = lambda _clock: os.environ["TEST_BOOT_ID"]  # type: ignore[method-assign]
main()
