"""Processes that another process watches. What these import, each of them does."""

import os
import signal
import subprocess
import sys
import time

from scripts import watched
from scripts.watched import each


def _perils(send, names):
    send.send(None)
    for name in names:
        if name == "ends":
            os._exit(1)
        while name == "computes":
            pass
        time.sleep(60 if name == "hangs" else 0)
        send.send(len(name))


def test_what_hangs_or_ends_its_process_costs_only_itself(monkeypatch):
    monkeypatch.setattr(watched, "_STILL", 3)
    found = list(each(_perils, ["fine", "ends", "hangs", "computes", "good", "well"], 3, 1))
    assert found == [
        ("fine", 4),
        ("ends", "the process ended"),
        ("hangs", "TimeoutError: it waits for something"),
        ("computes", "TimeoutError: more than 1 s"),
        ("good", 4),
        ("well", 4),
    ]


def _waits(send):
    os.setpgrp()
    time.sleep(600)


def _started_and_killed():
    with watched.watched(_waits):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_ends_with_the_one_that_watches_it():
    code = f"from {__name__} import _started_and_killed; _started_and_killed()"
    # the pipes close when the last process ends that has them
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert found.returncode == -signal.SIGKILL
    assert not found.stderr
