"""Runs a function where the JAX code that it calls cannot wait for a thread that waits for it.

XLA's CPU client runs most programs on a small pool of threads. A function called from one of these that itself runs a
JAX program and waits for it would wait for ever once all threads of the pool wait like this. XLA avoids it for its own
Python callbacks: inside one, programs run at once on the calling thread. So a function that was called on a thread of
the pool is run inside such a callback: that of a compiled program that does nothing else.
"""

import functools
import sys
import threading
from collections.abc import Callable

import jax
import numpy as np
import torch

from ..internals.dispatch import len_torch_dispatch_stack, len_torch_function_stack
from ..internals.transforms import peek_interpreter_stack
from ..runtime.translation import current

_jobs: dict[int, Callable[[], None]] = {}
_preparing = threading.Lock()
_programs: list[Callable] = []


def run_safely(job: Callable[[], None], *, from_pool: bool = True, protect: bool = False) -> None:
    """Runs `job` so that it may call JAX, and unaffected by PyTorch's modes around the caller.

    Called by what the handler of XLA's calls: two frames up is the first one of Python's.

    Args:
        job: raises what it likes.
        from_pool: whether threads of XLA's that call are those of the CPU client's pool.
        protect: whether what `job` calls must run on its thread, even though that is not of the pool: it holds a lock
            that another thread would wait for.
    """
    in_callback = functools.partial(_in_callback, job)
    if _inside_mode():
        in_fresh_thread(in_callback if from_pool else job)
    elif from_pool and (protect or sys._getframe(2).f_back is None):  # nothing in Python called: a thread of XLA's
        in_callback()
    else:
        job()


def _inside_mode() -> bool:
    return bool(
        len_torch_function_stack()
        or len_torch_dispatch_stack()
        or not torch.is_grad_enabled()
        or peek_interpreter_stack() is not None
        or current() is not None
    )


def _in_callback(job: Callable[[], None]) -> None:
    outcome = _Outcome(job)
    thread = threading.get_ident()
    _jobs[thread] = outcome
    try:
        prepare()()
    finally:
        left = _jobs.pop(thread, None)
    if left is not None:  # the callback came on another thread: run it without its protection
        outcome()
    outcome.reraise()


def in_fresh_thread(job: Callable[[], None]) -> None:
    """Runs `job` where no mode or transformation of the caller's is in force."""
    outcome = _Outcome(job)
    thread = threading.Thread(target=outcome)
    thread.start()
    thread.join()
    outcome.reraise()


class _Outcome:
    """A job, and the exception that it raised."""

    def __init__(self, job: Callable[[], None]):
        self.job = job
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.job()
        except BaseException as error:
            self.error = error

    def reraise(self) -> None:
        if self.error is not None:
            raise self.error


def prepare() -> Callable:
    """The compiled program that calls back; made once, when the first PyTorch function is compiled."""
    with _preparing:
        if not _programs:  # on a thread of its own, where no mesh or transformation of the caller's is in force
            outcome = _Outcome(lambda: _programs.append(_compile()))
            thread = threading.Thread(target=outcome)
            thread.start()
            thread.join()
            outcome.reraise()
        return _programs[0]


def _compile() -> Callable:
    def call_back():
        job = _jobs.pop(threading.get_ident(), None)
        if job is not None:
            job()
        return np.bool_(True)

    def program():
        return jax.pure_callback(call_back, jax.ShapeDtypeStruct((), np.bool_))

    device = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    return jax.jit(program, out_shardings=device).lower().compile()
