"""`python -m om_proxy` is `om-proxy`."""

import sys

from om_proxy.cli import main

sys.exit(main())
