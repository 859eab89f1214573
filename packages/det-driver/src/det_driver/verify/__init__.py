"""Train again and compare, for `det verify` and `det check --determinism`."""

from ._compare import Difference
from ._spec import Replay, Seen
from ._verify import Verdict, check_determinism, verify

__all__ = ["Difference", "Replay", "Seen", "Verdict", "check_determinism", "verify"]
