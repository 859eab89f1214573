from __future__ import annotations

import sys

from ._agent import main

sys.exit(main(sys.argv[1:]))
