"""`make newest`: the tests with the newest versions that pyproject.toml allows, in an environment that is thrown away.

It shows whether the bounds still hold before a user's resolver does. Run it by hand: its result depends on the day.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.setup_environment import ROOT, Environment, SetupError, clean_variables, create, install_with_pip


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="muster-newest-") as folder:
        environment = Environment(root=ROOT, home=Path(folder) / "environment")
        try:
            create(environment)
            install_with_pip(environment, locked=False)
        except SetupError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        # The lock's own test is about the locked environment.
        command = [environment.python, "-m", "pytest", "-n", "2", "--ignore", "tests/setup/test_environment.py"]
        command += shlex.split(os.environ.get("ARGS", ""))
        return subprocess.run(command, cwd=ROOT, env=clean_variables(locked=False), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
