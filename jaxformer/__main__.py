"""``python -m jaxformer``: the same as the ``jaxformer`` command."""

import sys

from jaxformer.cli import main

sys.exit(main())
