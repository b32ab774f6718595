"""Messages for the application's processes, delivered until somebody acknowledges them."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Protocol

from supervisor.orders import Body, Message, Order


class Recipient(Protocol):
    """A worker or the companion."""

    unacknowledged: dict[int, Message]

    def tell(self, order: Order) -> None: ...


_MOST_WAITING = 1000


@dataclass(slots=True)
class Post:
    """Holds what no living process has taken on yet; beyond a thousand the oldest are let go."""

    _waiting: collections.deque[Message] = field(
        default_factory=lambda: collections.deque(maxlen=_MOST_WAITING)
    )
    _last_id: int = 0

    def add(self, body: Body) -> None:
        self._last_id += 1
        self._waiting.append(Message(id=self._last_id, body=body))

    def deliver_to(self, recipient: Recipient | None) -> None:
        while self._waiting and recipient is not None:
            message = self._waiting.popleft()
            recipient.unacknowledged[message.id] = message
            recipient.tell(message)

    def take_back(self, recipient: Recipient) -> None:
        """It died: what it had not acknowledged is waiting again."""
        self._waiting.extend(recipient.unacknowledged.values())
        recipient.unacknowledged.clear()
