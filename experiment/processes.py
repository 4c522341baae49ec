"""Who computes: the device, the threads, and the processes that run the same lines."""
import contextlib
import ctypes
import logging
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, start_processes

from experiment.common import BadInput, Stopped
from experiment.terminal import ends_in_one_line

MOST = 8                             # processes that a program starts by itself
NEVER = timedelta(days=365)          # processes wait for one another while the server trains


@contextlib.contextmanager
def one_thread():
    """A process has one thread, except while the server trains (`on_server` in federation.py).

    So no number depends on how many processes there are; and a fork is safe, as long as torch has
    not used a second thread.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def device_of(name, is_program):
    """The torch.device of this name. Raises BadInput if it cannot be used.

    is_program    True: a GPU uses torch's deterministic algorithms. Another's process is left alone
    """
    try:
        device = torch.device(name)
        if name == "cuda" and "LOCAL_RANK" in os.environ:
            number = int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count())
            device = torch.device("cuda", number)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"--device {name} cannot be used ({reason})") from None
    if device.type == "cuda" and is_program:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # True doubles the kernels
    return device


def cpu_has_bfloat16():
    """False if this CPU would emulate bfloat16, which takes many times as long as float32."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def num_cores():
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


# ------------------------------------------------------------------------------ several processes

def how_many(command, device, is_program):
    """The number of processes to start: --processes, or one for each core where a fork is safe.

    By default at most MOST, and at most one for each client of a round; one in another's process.
    """
    can_fork = sys.platform == "linux" and device.type == "cpu" and "WORLD_SIZE" not in os.environ
    asked = command.program.processes
    if asked is None and is_program and can_fork:
        shares = [getattr(method.cfg, "participation", 1.0) for method in command.methods]
        most_clients = max(1, round(max(shares) * command.data_cfg.clients))
        return min(num_cores(), most_clients, MOST)
    if (asked or 1) > 1 and not can_fork:
        raise BadInput("--processes needs Linux, a CPU, and a start without torchrun")
    return asked or 1


def start(work, num_processes, advice):
    """Calls work() in so many processes, which run the same lines.

    advice     what a line about a stop ends with
    returns    what work() returns, if one process is enough
    """
    import torch._dynamo    # noqa: F401  # once, 2 s: else each process's first optimizer does
    with ends_in_one_line(advice):
        if num_processes > 1:
            return fork(work, num_processes, advice)
        if "WORLD_SIZE" in os.environ and not dist.is_initialized():     # torchrun has started it
            dist.init_process_group("gloo", timeout=NEVER)
        return work()


def fork(work, num_processes, advice):
    """Forks processes, which call work(), and waits. They end together, and with this process."""
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)     # `wait_for` tells
    with tempfile.TemporaryDirectory() as folder:
        arguments = (work, num_processes, f"file://{folder}/meeting", os.getpid(), advice)
        context = start_processes(child, arguments, num_processes, join=False, start_method="fork")
        try:
            wait_for(context)
        finally:
            for process in context.processes:
                process.kill()
                process.join()


def wait_for(context):
    """Waits until all forked processes have ended, or one has failed: then this one does as well.

    context    of torch.multiprocessing
    """
    try:
        while not context.join():
            pass
    except ProcessRaisedException as error:                  # it has the other's traceback
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
    except ProcessExitedException as error:
        if error.exit_code > 0:                              # it has said why
            raise SystemExit(error.exit_code) from None
        if error.signal_name == "SIGPIPE":
            raise SystemExit(128 + signal.SIGPIPE) from None
        killed = context.processes[error.error_index].pid
        raise Stopped(f"process {killed} of this run was killed") from None


def child(number, work, num_processes, meeting, parent, advice):
    """A process of `fork`: it ends with its parent, who alone hears Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)         # PR_SET_PDEATHSIG of Linux
    if os.getppid() != parent:                               # it has ended already
        os._exit(1)
    os.environ.update(RANK=str(number), WORLD_SIZE=str(num_processes), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=meeting, timeout=NEVER, rank=number,
                            world_size=num_processes)
    try:
        with ends_in_one_line(advice):
            work()
        dist.barrier()
    except BaseException:
        if number > 0:
            time.sleep(1)            # the first process meets most errors too, and tells them
        raise


def from_first(value):
    """The `value` of the first process, in every process."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]
