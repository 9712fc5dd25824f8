"""Run `om-proxy` as `python -m om_proxy`."""

import sys

from om_proxy.cli import main

sys.exit(main())
