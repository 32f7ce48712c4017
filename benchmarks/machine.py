"""Description of the machine on which a benchmark runs."""

import os
import sys
from typing import Any


def machine() -> dict[str, Any]:
    """Returns facts about machine and environment for the output; warns if it is busy."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"the machine is busy (load {load:.1f} in the last minute): the figures will mean "
            "little, the peers' least of all",
            file=sys.stderr,
        )
    import jax

    import jaxformer
    from jaxformer.paper.table_commands import processor

    device = jax.devices()[0]
    return {
        "device": processor() if device.platform == "cpu" else device.device_kind,
        "threads": len(os.sched_getaffinity(0)),
        "load": round(load, 2),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD", "OMP_", "CT2_", "XLA_"))
        },
        "versions": {"jaxformer": jaxformer.__version__, "jax": jax.__version__},
    }
