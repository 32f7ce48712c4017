"""Limits of a server: how much a client may ask for, and how much may wait."""

import dataclasses

from jaxformer.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the server; they are options of ``jaxformer serve``.

    Limits: Larger requests get HTTP 400 or 413. If the queue is full, requests get 429.
      char_limit: maximum number of characters of a text
      batch_limit: maximum number of sentences, lines of all texts, of a request; of completions or
        texts with other models
      token_limit: maximum number of tokens of a completion
      body_limit (BYTES): maximum size of a request
      queue_limit: maximum number of sentences that wait
      max_batch: maximum number of sentences that are translated together
      threads: number of batches that are translated at the same time
    """

    char_limit: int = 5000
    batch_limit: int = 128
    token_limit: int = 2048
    body_limit: int = 1 << 20
    queue_limit: int = 512
    max_batch: int = 8
    threads: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                option = name.replace("_", "-")
                raise UserError(f"--{option} must be at least 1: got {value}")

        if self.batch_limit > self.queue_limit:
            raise UserError("--batch-limit must be at most --queue-limit, or no request could wait")
