"""Monarch: actors in processes that this host starts for them. One round.

It starts itself again with `killed FIGURE`, since its settings are those of a process.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import deque

import monarch.actor
from measure import *
from monarch.actor import Actor, endpoint, this_host

# How often Monarch looks whether processes have ended; every ten seconds by default.
POLL = "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY"
DEFAULT_POLL = 10


class Plain(Actor):
    @endpoint
    def echo(self, words: bytes) -> bytes:
        return words

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Async(Actor):
    @endpoint
    async def echo(self, words: bytes) -> bytes:
        return words


def actor_of(kind, count=1):
    return this_host().spawn_procs(per_host={"procs": count}).spawn("mirror", kind)


def echo(actor):
    check(actor.echo.call_one(PAYLOAD).get())


def window(actor):
    """`answers` for `rate`: one thread keeps the asks under way, and waits for the oldest."""

    def answers(go_on):
        answered = 0
        pending = deque(actor.echo.call_one(PAYLOAD) for _ in range(OUTSTANDING))
        while go_on():
            check(pending.popleft().get())
            answered += 1
            pending.append(actor.echo.call_one(PAYLOAD))
        # What is still under way counts, as do the seconds that it takes.
        answered += len(pending)
        for reply in pending:
            check(reply.get())
        return answered

    return answers


def asks():
    """The figures of plain actors and of async ones; of each figure the better one counts."""
    seen = []
    for kind in Plain, Async:
        actor = actor_of(kind)
        p50, p99 = one_at_a_time(lambda: actor.echo.call_one(PAYLOAD).get())
        one_task = rate(window(actor))
        many_tasks = rate(from_many_tasks(lambda: actor.echo.call_one(PAYLOAD)))
        seen.append((p50, p99, one_task, many_tasks))
    p50, p99 = min(figures[:2] for figures in seen)
    say("p50", p50)
    say("p99", p99)
    say("one_task", max(figures[2] for figures in seen))
    say("many_tasks", max(figures[3] for figures in seen))


def started():
    """One mesh of all processes: a mesh for each is no quicker."""

    def start():
        replies = actor_of(Plain, PROCESSES).echo.call(PAYLOAD).get()
        for _, reply in replies.items():
            check(reply)

    say("start", seconds_of(start))


def killed(figure):
    """By hand, since Monarch starts no process again: the call raises, and the program makes another
    process and actor."""
    # By default it ends this process.
    monarch.actor.unhandled_fault_hook = lambda _: None
    actor = actor_of(Plain)
    times = []
    for _ in range(KILLS):
        pid = actor.pid.call_one().get()
        # Processes fail at any time, not just after Monarch has looked.
        time.sleep(random.uniform(0, DEFAULT_POLL) if POLL not in os.environ else 1)
        begun = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        try:
            while True:
                echo(actor)
        except Exception:
            actor = actor_of(Plain)
            echo(actor)
        times.append(time.perf_counter() - begun)
    say(figure, median(times))


def main():
    if sys.argv[1:2] == ["killed"]:
        killed(*sys.argv[2:])
        return
    asks()
    again = [sys.executable, __file__, "killed"]
    quicker = os.environ | {POLL: "100ms"}
    subprocess.run([*again, "restart"], env=quicker, check=True)
    by_default = "killed to next answer with Monarch's own polling, s"
    subprocess.run([*again, by_default], check=True)
    started()
    # An orderly end waits for each of the processes, which end with this one.
    sys.stdout.flush()
    os._exit(0)


main()
