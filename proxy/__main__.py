"""`python -m proxy` is `om-proxy`."""

import sys

from proxy.cli import main

sys.exit(main())
