"""What a user sees of a run's processes: printed lines, and how the program ends."""
import contextlib
import os
import signal
import sys
import traceback

from experiment.common import BadInput, Stopped


def is_first():
    """True in the process that prints and writes: the only one, or the first of several."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def say(text):
    """Prints a text at once. Only the first process prints."""
    if is_first():
        try:
            print(text, flush=True)
        except OSError as error:                             # its output goes to a full disk
            raise Stopped(error) from None


@contextlib.contextmanager
def ends_in_one_line(advice=""):
    """Bad input, a full disk, a killed process and Ctrl-C end the program without a traceback.

    advice    what a line about a stop ends with
    """
    try:
        yield
    except (BadInput, Stopped) as error:
        status = 2 if isinstance(error, BadInput) else 1
        line = " ".join(f"{error}{advice if status == 1 else ''}".split())
        if is_first():
            print(f"fedkd_minimal.py: error: {line}", file=sys.stderr)
        raise SystemExit(status) from None
    except KeyboardInterrupt:
        say(f"\nstopped{advice}")
        raise SystemExit(130) from None


def end_with(main, argv):
    """Calls main(argv) as this process's own program, and ends the process with its exit status.

    os._exit: gloo's threads can abort Python's own exit, and a full disk would make it fail.
    """
    sys.stdout.reconfigure(errors="replace")                 # "?" on a terminal without ±
    if hasattr(signal, "SIGPIPE"):                           # `| head` ends it; Windows has none
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    status = 0
    try:
        main(argv, is_program=True)
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:                                    # a mistake in the program
        traceback.print_exc()
        status = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)
