"""Starts and supervises the processes of several ranks, and gives them what they need to meet.

`det launch` starts one agent on each host (`det_node.agent`), whose standard input and output are
the connection. The agent ends its ranks when the connection ends, so they end with the launcher, in
whatever way it ends.
"""

from __future__ import annotations

from ._command import launch, parser, run_as_module
from ._hosts import SSH, Host, address_of_this, addresses, hosts_of, ranks_on, reaching
from ._output import Prefixed, last_words, say

__all__ = [
    "SSH",
    "Host",
    "Prefixed",
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
