"""The daemon with no memory that is writable and executable, as MemoryDenyWriteExecute= has it.

Run as a script with the arguments of `edgehub`. Exit code 77 where the kernel cannot (before 6.3).
Source: PR_SET_MDWE of prctl(2).
"""

from __future__ import annotations

import ctypes
import sys

PR_SET_MDWE = 65
PR_MDWE_REFUSE_EXEC_GAIN = 1
EXIT_CANNOT = 77

if ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0):
    sys.exit(EXIT_CANNOT)

# After the call, so that native code is loaded under it.
from edgehub.cli.main import main  # noqa: E402 - see above

main()
