"""The program as a process: signals, printed lines, errors, torchrun's processes, the device.

torch is imported only where it is needed, so that Ctrl-C works while it is imported.
"""
import contextlib
import os
import signal
import sys


def rank():
    """The number of this process; 0 unless torchrun has started several."""
    return int(os.environ.get("RANK", 0))


def count():
    """The number of processes."""
    return int(os.environ.get("WORLD_SIZE", 1))


def end_on_signals():
    """Ctrl-C and a closed pipe (`| head`) end the process at once and without a traceback."""
    for name in ("SIGINT", "SIGPIPE"):                       # Windows has no SIGPIPE
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


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
    """Sets the number of threads, joins the processes of torchrun, and returns the device.

    Raises ValueError if the device cannot be used.
    """
    import torch
    import torch.distributed as dist

    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.set_num_threads(environment["threads"])
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


def end_with(main, argv):
    """Calls main(argv) and ends the process with its exit status.

    os._exit: gloo's threads can abort Python's own exit, and a full disk would make it fail.
    """
    sys.stdout.reconfigure(errors="replace")                 # "?" on a terminal without ±
    status = 0
    try:
        main(argv)
    except SystemExit as stop:
        status = stop.code or 0
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)
