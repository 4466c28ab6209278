"""Run the command line as `python -m tidegate`, or this very file by `spark-submit`."""

import os
import sys

if sys.path[:1] == [os.path.dirname(__file__)]:
    del sys.path[
        0
    ]  # where a script lies Python looks first: our modules would stand in for others of their names

from tidegate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
