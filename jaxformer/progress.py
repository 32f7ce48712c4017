"""A progress bar that fits the terminal."""

from collections.abc import Sequence
from typing import Any

from tqdm import tqdm
from tqdm.utils import disp_len

_SHORTEST_BAR = len("|#|")


class ProgressBar(tqdm):
    """A bar of tqdm with values behind it, in the order of their importance.

    tqdm cuts a line that is too long for the terminal, even within a number. Here, a long
    description loses its beginning, and values that do not fit are left out.
    """

    values: Sequence[str] = ()

    @property
    def format_dict(self) -> dict[str, Any]:
        settings = dict(super().format_dict)
        columns = settings["ncols"]
        if not columns:  # A terminal without a size, or a file.
            return settings | {"postfix": ", ".join(self.values)}

        # The description is the prefix of the line.
        excess = self._length(settings) - columns
        if excess > 0:
            prefix = settings["prefix"]
            settings["prefix"] = ""
            if excess < len(prefix):
                settings["prefix"] = f"…{prefix[excess + 1 :]}"

        # The values are the postfix.
        kept: list[str] = []
        for value in self.values:
            postfix = ", ".join([*kept, value])
            if self._length(settings | {"postfix": postfix}) > columns:
                break
            kept.append(value)

        return settings | {"postfix": ", ".join(kept)}

    def _length(self, settings: dict[str, Any]) -> int:
        """Returns the number of columns of a line with the shortest bar."""
        settings = settings | {"ncols": 0}  # tqdm then leaves out the bar
        without_bar = disp_len(self.format_meter(**settings))

        has_bar = bool(settings["total"])
        if not has_bar:
            return without_bar
        return without_bar + _SHORTEST_BAR
