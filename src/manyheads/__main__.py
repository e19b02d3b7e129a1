"""`python -m manyheads` is the command `manyheads`."""

from __future__ import annotations

import sys

from manyheads.cli.main import main

sys.exit(main())
