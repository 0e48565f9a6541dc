"""expect.py CODE COMMAND...: runs the command, passes its output on, and checks
its exit code. A signal is never what was expected."""
import subprocess
import sys

wanted = int(sys.argv[1])
code = subprocess.run(sys.argv[2:], timeout=100).returncode
if code != wanted:
    sys.exit(f"exit code {code}, expected {wanted}: {' '.join(sys.argv[2:])}")
