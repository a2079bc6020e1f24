"""Ray: actors in processes of their own on one node, which this driver starts. One round."""

import os
import signal

# In its favour: no checks of a token, and nothing is reported to anybody.
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from measure import *

# How many answers `ray.wait` waits for before as many asks follow. Fewer than 50 are slower; with up
# to 1,000 the rates were within each other's spread.
BATCH = 100


class Plain:
    def echo(self, words):
        return words

    def pid(self):
        return os.getpid()


class Async:
    async def echo(self, words):
        return words


def window(actor):
    """`answers` for `rate`: one thread keeps the asks under way."""

    def answers(go_on):
        answered = 0
        pending = [actor.echo.remote(PAYLOAD) for _ in range(OUTSTANDING)]
        while go_on():
            ready, pending = ray.wait(pending, num_returns=BATCH)
            for reply in ray.get(ready):
                check(reply)
            answered += len(ready)
            pending += [actor.echo.remote(PAYLOAD) for _ in ready]
        # What is still under way counts, as do the seconds that it takes.
        return answered + len(ray.get(pending))

    return answers


def asks():
    """The figures of plain actors and of async ones; of each figure the better one counts."""
    seen = []
    for kind in Plain, Async:
        actor = ray.remote(num_cpus=1)(kind).remote()
        p50, p99 = one_at_a_time(lambda: ray.get(actor.echo.remote(PAYLOAD)))
        one_task = rate(window(actor))
        many_tasks = rate(from_many_tasks(lambda: actor.echo.remote(PAYLOAD)))
        seen.append((p50, p99, one_task, many_tasks))
        ray.kill(actor)
    p50, p99 = min(figures[:2] for figures in seen)
    say("p50", p50)
    say("p99", p99)
    say("one_task", max(figures[2] for figures in seen))
    say("many_tasks", max(figures[3] for figures in seen))


def killed():
    plain = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Plain)
    actor = plain.remote()
    times = []
    for _ in range(KILLS):
        pid = ray.get(actor.pid.remote())

        def kill():
            os.kill(pid, signal.SIGKILL)
            check(ray.get(actor.echo.remote(PAYLOAD)))

        times.append(seconds_of(kill))
    say("restart", median(times))
    ray.kill(actor)


def started():
    """Ray starts a process for each actor, also when tasks have left idle ones."""
    plain = ray.remote(num_cpus=1)(Plain)
    actors = []

    def start():
        actors.extend(plain.remote() for _ in range(PROCESSES))
        for reply in ray.get([actor.echo.remote(PAYLOAD) for actor in actors]):
            check(reply)

    say("start", seconds_of(start))
    pids = set(ray.get([actor.pid.remote() for actor in actors]))
    if len(pids) != PROCESSES:
        raise RuntimeError(f"{PROCESSES} actors share {len(pids)} processes")


def main():
    ray.init(num_cpus=64, include_dashboard=False, log_to_driver=False, logging_level="error")
    asks()
    killed()
    started()


main()
