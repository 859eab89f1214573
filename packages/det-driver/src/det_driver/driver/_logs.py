"""What the log of a run says about trying again."""

from __future__ import annotations

import re
from pathlib import Path

from det_core.config import ExperimentConfig


def cancels_retries(config: ExperimentConfig, log_dir: Path) -> bool:
    """Tell whether a `log_policies` entry with the action `cancel_retries` matches a line of the run's logs."""
    patterns = [
        re.compile(policy.pattern)
        for policy in config.log_policies
        if policy.pattern and policy.action == "cancel_retries"
    ]
    if not patterns:
        return False
    for file in sorted(log_dir.glob("*.log")):
        with file.open(errors="replace") as lines:
            if any(pattern.search(line) for line in lines for pattern in patterns):
                return True
    return False
