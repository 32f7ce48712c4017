"""Runs the ``jaxformer`` command as ``python -m jaxformer``."""

import sys

from jaxformer.cli import main

sys.exit(main())
