"""The program as one or several processes: signals, printed lines, errors, forks, the device.

torch is imported only where it is needed, so that Ctrl-C works while it is imported.
"""
import contextlib
import ctypes
import functools
import os
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta

MOST = 8                             # processes that a program makes by itself
NEVER = timedelta(days=365)          # processes wait for one another while the server trains
PR_SET_PDEATHSIG = 1                 # of Linux's prctl


def rank():
    """The number of this process; 0 if there is one."""
    return int(os.environ.get("RANK", 0))


def count():
    """The number of processes."""
    return int(os.environ.get("WORLD_SIZE", 1))


def end_on_signals():
    """Ctrl-C and a closed pipe (`| head`) end the process at once and without a traceback."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:    # ignored in a script's background jobs
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "SIGPIPE"):                           # Windows has none; Python ignores it
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def say(text):
    """Prints a text at once. Only the first process prints."""
    if rank() == 0:
        print(text, flush=True)


def fail(message, status=2):
    """Ends the program with this exit status after one line on standard error."""
    if rank() == 0:
        print("fedkd_minimal.py: error:", *str(message).split(), file=sys.stderr)
    raise SystemExit(status)


@contextlib.contextmanager
def bad_input_is_refused():
    """A ValueError or OSError in this block ends the program: one line, exit status 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        fail(error)


@contextlib.contextmanager
def resumable(folder):
    """Ctrl-C in this block, or a write that fails, ends the program with one line.

    folder    where the run is kept, which the line names; None: nowhere
    """
    advice = f"; every finished round is kept; --resume {folder} continues" if folder else ""
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:                             # ignored in a script's background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nstopped{advice}")
        raise SystemExit(130) from None
    except OSError as error:                                 # a full disk, for example
        fail(f"{error}{advice}", 1)
    finally:
        signal.signal(signal.SIGINT, before)


def set_up(environment):
    """Joins the processes of torchrun, and returns the device.

    A process has one thread, except while the server trains (`run_students` in parallel.py): so no
    number depends on how many processes there are. Raises ValueError if the device cannot be used.
    """
    import torch
    import torch.distributed as dist

    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo", timeout=NEVER)
    torch.set_num_threads(1)
    try:
        device = torch.device(environment["device"])
        if environment["device"] == "cuda" and "LOCAL_RANK" in os.environ:
            number = int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count())
            device = torch.device("cuda", number)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {environment['device']!r} cannot be used ({reason}): "
                         "choose another with --device, such as --device cpu") from None
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return device


def cpu_has_bfloat16():
    """False if this CPU would emulate bfloat16, which takes many times as long as float32."""
    import torch

    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def import_optimizers():
    """A process's first optimizer imports for 2 seconds: before round 1, whose time counts."""
    import torch

    torch.optim.SGD([torch.zeros(1)], lr=1.0)


# ------------------------------------------------------------------------------ several processes

def num_cores():
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def can_fork(device):
    """True where a fork is safe: on Linux, on a CPU, and not in a process of torchrun."""
    return sys.platform == "linux" and device == "cpu" and "WORLD_SIZE" not in os.environ


def how_many(given, device, num_clients, may_fork):
    """The number of processes: torchrun's, or --processes, or one for each core.

    By default at most MOST, and at most one for each client of a round; one for a program that did
    not start this process itself (may_fork=False). Raises ValueError where a fork is not safe.
    """
    if "processes" in given and given["processes"] > count() and not can_fork(device):
        raise ValueError("--processes needs Linux and a CPU; torchrun starts several elsewhere")
    if "processes" in given:
        return max(given["processes"], count())
    if not may_fork or not can_fork(device):
        return count()
    return max(1, min(num_cores(), num_clients, MOST))


@contextlib.contextmanager
def forked(processes, locks):
    """Makes so many processes of this one; all run the block, and the new ones end with it.

    locks    open files that the new processes must not keep open

    They exchange tensors by gloo over the loopback address; they meet at a file in a folder of this
    user's own. If one of them is killed, or meets an error that the others do not meet, all end:
    this one with a ConnectionError, the others together with it.
    """
    if processes <= count():
        yield
        return
    import torch.distributed as dist

    children, number = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number_of_child in range(1, processes):
            child = os.fork()
            if child == 0:
                number = number_of_child
                end_with_parent()
                for lock in locks:
                    os.close(lock)
                break
            children.append(child)
        os.environ.update(RANK=str(number), WORLD_SIZE=str(processes), GLOO_SOCKET_IFNAME="lo")
        try:
            if number == 0:
                signal.signal(signal.SIGCHLD, lambda *_: check_alive(children))
            dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", timeout=NEVER,
                                    rank=number, world_size=processes)
            yield
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            wait_for_all()
        except BaseException as error:
            if number > 0:
                time.sleep(2)        # the first process meets most errors too: it ends this one now
                traceback.print_exc()
            elif isinstance(error, RuntimeError):
                time.sleep(1)        # one that is killed closes its connections, then it ends
                check_alive(children)
            raise
        finally:
            if number > 0:
                os._exit(0)          # nothing that the first process does is done twice
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if dist.is_initialized():
                dist.destroy_process_group()
            for name in ("RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME"):
                del os.environ[name]


def end_with_parent():
    """Lets the kernel kill this process when its parent ends; Ctrl-C is for the parent alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:                               # it has ended already
        os._exit(1)


def check_alive(children):
    """Raises ConnectionError if one of these processes has ended."""
    for child in children:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            raise ConnectionError(f"process {child} of this run has ended: it was killed, or it "
                                  "met the error above")


def gather(value):
    """[the value of each process], in every process."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def wait_for_all():
    """Returns when all processes have come here."""
    gather(None)


def keeps_threads(main):
    """Decorator: torch's number of threads is afterwards what it was before."""
    @functools.wraps(main)
    def wrapper(*arguments, **options):
        import torch

        threads = torch.get_num_threads()
        try:
            return main(*arguments, **options)
        finally:
            torch.set_num_threads(threads)
    return wrapper


def end_with(main, argv):
    """Calls main(argv), which may fork, and ends the process with its exit status.

    os._exit: gloo's threads can abort Python's own exit, and a full disk would make it fail.
    """
    sys.stdout.reconfigure(errors="replace")                 # "?" on a terminal without ±
    status = 0
    try:
        main(argv, may_fork=True)
    except SystemExit as stop:
        status = stop.code or 0
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)
