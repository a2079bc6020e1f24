"""Runs of recipes and the numbers that they told, for the scripts beside this file."""

import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ODEON = os.environ.get("ODEON_BIN", "target/release/odeon")
PR_SET_CHILD_SUBREAPER = 36


class Run:
    """A run that has ended: its folder, and the processor time of all its processes in seconds."""

    def __init__(self, folder, took):
        self.folder = folder
        self.cpu_seconds = took["cpu_seconds"]

    def reports(self, kind):
        """The reports of a kind, each with its `time`, as `docs/metrics.md` describes them."""
        for line in (self.folder / "metrics.jsonl").read_text().splitlines():
            report = json.loads(line)
            if kind in report:
                yield {"time": report["time"], **report[kind]}

    def right(self):
        """Percent of the problems that were answered right, before the first step and after the last."""
        all_stats = [it["stats"] for it in self.reports("Evaluated")]
        percent = [100 * stats["correct"] / stats["problems"] for stats in all_stats]
        return percent[0], percent[-1]


def run(out, name, recipe):
    """Runs a recipe named `name` with `out` as its folder, unless that was done before."""
    done = out / f"{name}.done"
    if not done.exists():
        file = out / f"{name}.toml"
        file.write_text(recipe)
        took = execute([ODEON, "run", file, "--fresh"], out / f"{name}.txt")
        done.write_text(json.dumps(took))
    return Run(out / name, json.loads(done.read_text()))


def execute(words, log):
    """Runs a command and all that it starts to their ends, and counts their processor time."""
    # Whoever loses the parent is waited for here, so that its time counts.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(log, "w") as text:
        code = subprocess.call(words, stdin=subprocess.DEVNULL, stdout=text, stderr=text)
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass
    if code != 0:
        sys.exit(f"{' '.join(map(str, words))} failed: see {log}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "seconds": time.monotonic() - began,
    }


def spread(values, digits=1, unit=""):
    """The mean of numbers, and the least and the most of them where they differ."""
    mean, least, most = (f"{of(values):.{digits}f}" for of in (statistics.mean, min, max))
    return f"{mean}{unit} ({least} to {most})" if least != most else f"{mean}{unit}"


def table(heads, rows):
    """Prints a table as the docs have them."""
    print("| " + " | ".join(heads) + " |")
    print("|" + " --- |" * len(heads))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def arguments(usage, seeds):
    """The folder and the number of seeds of a command line, and what words follow them."""
    words = sys.argv[1:]
    if not words or words[0].startswith("-"):
        sys.exit(usage)
    out = Path(words[0]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if len(words) > 1 and words[1].isdigit():
        seeds = int(words[1])
        words.pop(1)
    return out, range(1, 1 + seeds), words[1:]
