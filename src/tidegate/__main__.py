"""Run the command line as `python -m tidegate`, or this very file by `spark-submit`."""

import os
import sys

if sys.path[:1] == [os.path.dirname(__file__)]:
    del sys.path[
        0
    ]  # Python searches a script's own directory first: our modules would replace others of the same names

from tidegate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
