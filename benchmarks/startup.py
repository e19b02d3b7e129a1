"""How long `manyheads cost llama-2-70b` takes, the whole process, as a multiple of `python -c pass`.

    python benchmarks/startup.py [RUNS]        at least 15, by default 21

The three commands take turns, so that whatever else the machine does falls on all of them. Compared are the shortest
runs: what is left when nothing interferes. The exit status is 1 over the limits of the design, 20 times with the text
table and 10 with --json, in the shortest and in the median run alike; and 2 when a command fails or says nothing, for
then its time means nothing.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time

LEAST_RUNS = 15
# As an installed command runs, with its bytecode kept: containers often ask Python to throw it away.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
MODEL = "llama-2-70b"
LLAMA_2_70B_PARAMETERS = 68_976_648_192
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    f"manyheads cost {MODEL}": ["-m", "manyheads", "cost", MODEL],
    f"manyheads cost {MODEL} --json": ["-m", "manyheads", "cost", MODEL, "--json"],
}
LIMITS = {f"manyheads cost {MODEL}": 20.0, f"manyheads cost {MODEL} --json": 10.0}


def run(words: list[str]) -> tuple[float, str]:
    """Seconds that the whole process took, and what it printed."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, env=ENVIRONMENT)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        print(f"no figures: {' '.join(words)} exited {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
        raise SystemExit(2)
    return seconds, done.stdout


def check_answers() -> None:
    """Refuses to time a command that does not answer rightly; also fills the caches of files and bytecode."""
    text, data = (run(COMMANDS[name])[1] for name in LIMITS)
    right = json.loads(data)["parameters"]["total"] == LLAMA_2_70B_PARAMETERS
    if not (right and f"{LLAMA_2_70B_PARAMETERS:,}" in text):
        print(f"no figures: the answer does not hold {LLAMA_2_70B_PARAMETERS:,} parameters", file=sys.stderr)
        raise SystemExit(2)


def main() -> int:
    """Times the commands in turns and prints the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    if runs < LEAST_RUNS:
        print(f"{runs} runs are too few to tell; {LEAST_RUNS} or more would be valid", file=sys.stderr)
        return 2
    check_answers()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, words in COMMANDS.items():
            seconds[name].append(run(words)[0])
    least = {name: min(times) for name, times in seconds.items()}
    middle = {name: statistics.median(times) for name, times in seconds.items()}

    print(f"{runs} runs each, in turns; Python {platform.python_version()}, {platform.machine()}, {platform.system()}")
    print(f"{'command':<36} {'shortest':>10} {'median':>10} {'ratio':>7} {'of medians':>11} {'limit':>6}")
    over = False
    for name in COMMANDS:
        ratio, of_medians = (times[name] / times["python -c pass"] for times in (least, middle))
        limit = LIMITS.get(name)
        over |= limit is not None and min(ratio, of_medians) > limit
        shown = "" if limit is None else f"{limit:.0f}"
        print(
            f"{name:<36} {1e3 * least[name]:>7.1f} ms {1e3 * middle[name]:>7.1f} ms "
            f"{ratio:>7.1f} {of_medians:>11.1f} {shown:>6}"
        )
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
