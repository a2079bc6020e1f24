"""Measurements that the scripts of all peers share; figures.rs does the same for the Rust libraries.

Each line on stdout is one figure: {"figure": NAME, "value": NUMBER}.
"""

import asyncio
import json
import time

# 64 bytes there and back.
PAYLOAD = bytes([7]) * 64
# Asks under way at once.
OUTSTANDING = 1_000
# Processes that are started at once.
PROCESSES = 50
# Processes that are killed, one after the other.
KILLS = 3

WARM_UP = 0.5
ONE_AT_A_TIME = 2.0
MANY_AT_ONCE = 3.0


def say(figure, value):
    """Hands one figure to the program that started this script."""
    print(json.dumps({"figure": figure, "value": value}), flush=True)


def check(reply):
    if reply != PAYLOAD:
        raise RuntimeError("the reply is not what was sent")


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def one_at_a_time(ask):
    """The median and the 99th percentile of the microseconds of an ask."""
    for span in WARM_UP, ONE_AT_A_TIME:
        times, end = [], time.perf_counter() + span
        while (begun := time.perf_counter()) < end:
            check(ask())
            times.append((time.perf_counter() - begun) * 1e6)
    times.sort()
    return [times[int((len(times) - 1) * part)] for part in (0.5, 0.99)]


def rate(answers):
    """Answers in a second. `answers(go_on)` keeps asks under way while `go_on()`, and gives the
    number of those that were answered meanwhile."""
    for span in WARM_UP, MANY_AT_ONCE:
        begun = time.perf_counter()
        answered = answers(lambda: time.perf_counter() - begun < span)
        seconds = time.perf_counter() - begun
    return answered / seconds


def from_many_tasks(ask):
    """`answers` for `rate`: as many tasks of asyncio as asks are under way; each asks again when it
    is answered."""

    async def task(go_on):
        answered = 0
        while go_on():
            check(await ask())
            answered += 1
        return answered

    async def all_tasks(go_on):
        return sum(await asyncio.gather(*(task(go_on) for _ in range(OUTSTANDING))))

    return lambda go_on: asyncio.run(all_tasks(go_on))


def seconds_of(act):
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun
