"""Run a command with a limit for the whole of it: python tests/limited.py SECONDS COMMAND ...

A test that hangs in compiled code can't be interrupted by a signal, and then neither can its worker. So the whole run
is ended from outside; pytest's fault handler has printed by then where each worker was.
"""

import os
import signal
import subprocess
import sys


def main() -> int:
    limit, command = float(sys.argv[1]), sys.argv[2:]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        print(
            f"\nSTOPPED after {limit:.0f} s: the run did not end. A test hangs, or the machine is very slow; the "
            "tracebacks above, if any, say in which test each worker was.",
            file=sys.stderr,
        )
        return 124
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
