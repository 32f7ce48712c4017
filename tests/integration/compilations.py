import jax


class Compilations:
    """Counts programs that XLA compiles while it is open."""

    def __init__(self) -> None:
        self.count, self.open = 0, False
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **_: object) -> None:
        self.count += self.open and event.endswith("backend_compile_duration")

    def __enter__(self) -> "Compilations":
        self.open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.open = False
