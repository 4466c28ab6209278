"""`tidegate warm-up`: compiles the code that jobs need, so that no job has to wait for it."""

import argparse
import os
import time

from tidegate.errors import ConfigError

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Compile the parts of replays and of usage that process rows, and keep the
machine code for later commands. Use this command when you build a container
image, in CI, and on the machines of a Spark cluster. It takes about two
minutes on a new machine, and a second when all is compiled.

Without it, the first commands process small records without compiling, and
compile in the background; larger records wait for the compilation."""

_EPILOG = """\
examples:
  tidegate warm-up
  NUMBA_CACHE_DIR=/opt/tidegate/cache tidegate warm-up
                                   for all users of a container image
  NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= tidegate warm-up
                                   for machines with other processors

The machine code is stored in $NUMBA_CACHE_DIR, by default ~/.cache/tidegate.
It is valid for one version of Tidegate, of Python, of numba and of the
processor. Later commands need the same values of the NUMBA_ variables.
Needs the extra 'pipeline' (README, Install)

exit codes:
  0    done
  2    the directory cannot be written; the reason is on stderr
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    subparsers.add_parser(
        "warm-up",
        help="compile ahead what the jobs need, for images and CI",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(args: argparse.Namespace) -> int:
    """Compile all kernels, and print the time for each."""
    from tidegate.pipeline.replay.kernel.compiled import cache_base
    from tidegate.pipeline.warm_up import KERNEL_NAMES, compile_kernel_named

    directory = cache_base(os.environ)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_writable = os.access(directory, os.W_OK | os.X_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        raise ConfigError(
            f"cannot write to {str(directory)!r}, where the compiled code is kept",
            hint="set NUMBA_CACHE_DIR to a directory that you can write to, also for later commands",
        )
    for name, what in KERNEL_NAMES.items():
        started = time.perf_counter()
        is_new = compile_kernel_named(name)
        took = f"compiled in {time.perf_counter() - started:.1f} s" if is_new else "was compiled before"
        print(f"{what}: {took}", flush=True)
    print(f"kept in {str(directory)!r}")
    return 0
