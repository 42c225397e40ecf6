"""What one client subscribes to: SUBSCRIBE, UNSUBSCRIBE, and the return of a stored session.

Owns the client's subscriptions while it is connected. Invariant: a stored session is durable before
the client is told so.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from edgehub.heads.mqtt.packets import SUBACK_FAILURE, suback, unsuback
from edgehub.heads.mqtt.topics import parse_subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.errors import StoreError
    from edgehub.heads.mqtt.log_limit import LogLimit
    from edgehub.heads.mqtt.packets import Subscribe, Unsubscribe
    from edgehub.heads.mqtt.session_writes import Done
    from edgehub.heads.mqtt.sign_in import Client
    from edgehub.heads.mqtt.subscriptions import SubscriptionIndex
    from edgehub.heads.mqtt.topics import Subscription

UNANSWERED_MAX: Final = 64
"""Changes of a stored session that may wait for the disk before the client is not read any more."""

C = TypeVar("C", bound="Answers")


class Answers(Protocol):
    """The connection as its subscriber sees it."""

    def write(self, data: bytes) -> None:
        """Send bytes with the next flush."""

    def session_stored(self, error: StoreError | None) -> None:
        """Hear that a change of the session is durable, or why it is not."""


class Subscriber(Generic[C]):
    """Subscriptions of one client.

    Args:
        connection: Where deliveries and answers go.
        client: Whose rights count.
        index: The listener's index.
        subscriptions: Granted quality of service by filter, kept up to date here.
        subscriptions_max: Most of them.
        save: Stores them and then calls back; None = a clean session.
        log: For refusals.
    """

    __slots__ = (
        "_client",
        "_connection",
        "_index",
        "_log",
        "_max",
        "_save",
        "_unanswered",
        "subscriptions",
    )

    def __init__(
        self,
        connection: C,
        client: Client,
        index: SubscriptionIndex[C],
        subscriptions: dict[str, int],
        *,
        subscriptions_max: int,
        save: Callable[[Done], None] | None,
        log: LogLimit,
    ) -> None:
        self._connection = connection
        self._client = client
        self._index = index
        self._max = subscriptions_max
        self._save = save
        self._log = log
        self._unanswered = 0
        self.subscriptions = subscriptions

    @property
    def must_pause(self) -> bool:
        """Whether so many answers wait for the disk that no further request should be read."""
        return self._unanswered >= UNANSWERED_MAX

    def restore(self) -> None:
        """Bring a stored session to life; what the client has no right to any more is dropped."""
        for topic_filter, qos in list(self.subscriptions.items()):
            subscription = self._allowed(topic_filter)
            if subscription is None:
                del self.subscriptions[topic_filter]
            else:
                self._index.add(self._connection, subscription, qos)

    def subscribe(self, packet: Subscribe) -> None:
        """Grant what the dialect and the client's rights have, refuse the rest with 0x80."""
        before = dict(self.subscriptions)
        granted = [(name, self._grant(name, qos)) for name, qos in packet.filters]
        answer = suback(packet.packet_id, bytes(code for _, code in granted))
        self._answer(answer, changed=self.subscriptions != before)
        for name, code in granted:
            subscription = parse_subscription(name)
            if subscription is not None and code != SUBACK_FAILURE:
                self._index.add(self._connection, subscription, code)

    def unsubscribe(self, packet: Unsubscribe) -> None:
        """End subscriptions; unknown ones are acknowledged too."""
        ended = [name for name in packet.filters if self.subscriptions.pop(name, None) is not None]
        self._index.remove(self._connection, self._parsed(ended))
        self._answer(unsuback(packet.packet_id), changed=bool(ended))

    def leave(self) -> None:
        """The connection is gone; a stored session keeps its subscriptions."""
        self._index.remove(self._connection, self._parsed(self.subscriptions))

    def _grant(self, topic_filter: str, qos: int) -> int:
        subscription = self._allowed(topic_filter)
        known = topic_filter in self.subscriptions
        if subscription is None or (not known and len(self.subscriptions) >= self._max):
            self._log.warning(
                "mqtt.subscription_refused",
                client_id=self._client.id,
                topic_filter=ascii(topic_filter[:80]),
            )
            return SUBACK_FAILURE
        granted = min(qos, 1)
        self.subscriptions[topic_filter] = granted
        return granted

    def _allowed(self, topic_filter: str) -> Subscription | None:
        subscription = parse_subscription(topic_filter)
        if subscription is None or not self._client.may_speak_for(subscription.target):
            return None
        return subscription

    def _answer(self, answer: bytes, *, changed: bool) -> None:
        if self._save is not None and changed:
            self._unanswered += 1
            self._save(partial(self._answer_stored, answer))
        else:
            self._connection.write(answer)

    def _answer_stored(self, answer: bytes, error: StoreError | None) -> None:
        self._unanswered -= 1
        if error is None:
            self._connection.write(answer)
        self._connection.session_stored(error)

    @staticmethod
    def _parsed(filters: Iterable[str]) -> list[Subscription]:
        parsed = (parse_subscription(name) for name in filters)
        return [subscription for subscription in parsed if subscription is not None]
