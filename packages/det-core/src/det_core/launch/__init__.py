"""How the processes of several ranks are started, told where they meet, and supervised.

`det launch` starts one process on each host, `det_core.launch.host`, which starts and supervises the host's ranks. It is
told what to do over its standard input, and ends them when that closes: so they end with the launcher, however it ended.
"""

from __future__ import annotations

from ._command import launch, parser, run_as_module
from ._group import Command, Group, RankExit
from ._hosts import SSH, Host, address_of_this, addresses, hosts_of, ranks_on, reaching
from ._output import Prefixed, last_words, say

__all__ = [
    "SSH",
    "Command",
    "Group",
    "Host",
    "Prefixed",
    "RankExit",
    "address_of_this",
    "addresses",
    "hosts_of",
    "last_words",
    "launch",
    "parser",
    "ranks_on",
    "reaching",
    "run_as_module",
    "say",
]
