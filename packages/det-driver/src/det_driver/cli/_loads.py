"""Whether what plugins register can be imported: tried in processes of their own, as frameworks disagree with one another.

`python -m det_driver.cli._loads PLUGIN` tries one plugin, and prints a JSON list of what is wrong on its last line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

SECONDS = 120.0


def failing_loads(plugins: Iterable[str]) -> dict[str, list[str]]:
    """Return for each plugin a sentence for each of its records that does not load."""
    names = list(plugins)
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
        return dict(zip(names, threads.map(_tried, names), strict=True))


def _tried(plugin: str) -> list[str]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __spec__.name, plugin],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"what it registers does not load within {SECONDS:g} s"]
    if done.returncode:
        number = -done.returncode
        how = signal.Signals(number).name if number > 0 else f"status {done.returncode}"
        return [f"loading what it registers ends the process with {how}"]
    problems: list[str] = json.loads(done.stdout.splitlines()[-1])
    return problems


def main(plugin: str) -> None:
    """Load what a plugin registers, and print what is wrong."""
    from det_core.plugins import Plugins

    problems = []
    for what, load in Plugins.installed(warn=lambda message: None).imports(plugin):
        try:
            load()
        except (Exception, SystemExit) as error:
            problems.append(f"the {what} does not load: {type(error).__name__}: {' '.join(str(error).split())}")
    sys.stdout.write(f"\n{json.dumps(problems)}\n")
    sys.stdout.flush()
    os._exit(0)  # frameworks take seconds to leave


if __name__ == "__main__":
    main(sys.argv[1])
