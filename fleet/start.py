"""Where the command `duckctl` begins: ctrl-C is answered well even while Python still reads our modules."""

from __future__ import annotations

import os
import signal
import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run one command and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _end)
    from duckfleet.fleet import cli

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _end(*_: object) -> None:
    """Nothing was begun yet, so there is nothing to clean up; a KeyboardInterrupt would tear an import apart."""
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)
