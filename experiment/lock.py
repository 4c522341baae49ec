"""One command at a time works in the folder of --out."""
import contextlib
import os
import time
from pathlib import Path

from experiment.common import BadInput, refuses
from experiment.terminal import is_first


@contextlib.contextmanager
def alone_in(out):
    """In this block no other command is at work in the folder of --out, which is made here.

    The system frees the lock when the last process of a command has ended, however it ended. What
    is still empty at the end is removed.
    """
    if out is None or not is_first():
        yield
        return
    folder = Path(out)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with refuses(OSError):
        file = locked(folder / ".lock")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(file.name)
            for path in missing:
                path.rmdir()
        file.close()


def locked(path):
    """The file, open and locked, with the number of this process in it."""
    deadline = time.monotonic() + 2      # processes of a command that was killed end a bit later
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+")
        if try_lock(file):               # maybe of a file that its owner has removed meanwhile
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                print(os.getpid(), file=file, flush=True)
                return file
        elif time.monotonic() > deadline:
            file.seek(0)
            raise BadInput(f"process {file.read().strip()} is at work in {path.parent}: wait for "
                           "its end, or choose another --out")
        file.close()
        time.sleep(0.1)


def try_lock(file):
    """Locks a file; False if another process has. Where a system knows no locks, it is True."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
