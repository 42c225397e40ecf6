"""What one client subscribes to: SUBSCRIBE, UNSUBSCRIBE, and the return of a stored session.

Owns the client's subscriptions while it is connected. Invariant: a stored session is durable before
the client is told so.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from edgehub.heads.mqtt.packets5 import QOS
from edgehub.heads.mqtt.reasons import FIRST_FAILURE, ReasonCode
from edgehub.heads.mqtt.statistics import CloseReason
from edgehub.heads.mqtt.topics import parse_subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.errors import StoreError
    from edgehub.heads.mqtt.answers import Answers
    from edgehub.heads.mqtt.log_limit import LogLimit
    from edgehub.heads.mqtt.packets import Subscribe, Unsubscribe
    from edgehub.heads.mqtt.session_writes import Done
    from edgehub.heads.mqtt.sign_in import Client
    from edgehub.heads.mqtt.subscriptions import SubscriptionIndex
    from edgehub.heads.mqtt.topics import Subscription

UNANSWERED_MAX: Final = 64
"""Changes of a stored session that may wait for the disk before the client is not read any more."""

C = TypeVar("C", bound="Peer")


class Peer(Protocol):
    """The connection as its subscriber sees it."""

    def write(self, data: bytes) -> None:
        """Send bytes with the next flush."""

    def session_stored(self, error: StoreError | None) -> None:
        """Hear that a change of the session is durable, or why it is not."""

    def close(self, reason: CloseReason, detail: str) -> None:
        """Close the connection."""


class Subscriber(Generic[C]):
    """Subscriptions of one client.

    Args:
        connection: Where deliveries and answers go.
        answers: What they look like.
        client: Whose rights count.
        index: The listener's index.
        subscriptions: Options by filter, the granted quality of service in the lowest two bits;
            kept up to date here.
        subscriptions_max: Most of them.
        save: Stores them and then calls back; None = a clean session.
        log: For refusals.
    """

    __slots__ = (
        "_answers",
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
        answers: Answers,
        client: Client,
        index: SubscriptionIndex[C],
        subscriptions: dict[str, int],
        *,
        subscriptions_max: int,
        save: Callable[[Done], None] | None,
        log: LogLimit,
    ) -> None:
        self._connection = connection
        self._answers = answers
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
        for topic_filter, options in list(self.subscriptions.items()):
            subscription = self._allowed(topic_filter)
            if subscription is None:
                del self.subscriptions[topic_filter]
            else:
                self._index.add(self._connection, subscription, options)

    def subscribe(self, packet: Subscribe) -> None:
        """Grant what the dialect and the client's rights have, refuse the rest."""
        before = dict(self.subscriptions)
        granted = [(name, self._grant(name, options)) for name, options in packet.filters]
        answer = self._answers.suback(packet.packet_id, [code for _, code in granted])
        self._answer(answer, changed=self.subscriptions != before)
        for name, code in granted:
            subscription = parse_subscription(name)
            if subscription is not None and code < FIRST_FAILURE:
                self._index.add(self._connection, subscription, self.subscriptions[name])

    def unsubscribe(self, packet: Unsubscribe) -> None:
        """End subscriptions; unknown ones are acknowledged too."""
        ended = []
        codes = []
        for name in packet.filters:
            known = self.subscriptions.pop(name, None) is not None
            codes.append(ReasonCode.SUCCESS if known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
            if known:
                ended.append(name)
        self._index.remove(self._connection, self._parsed(ended))
        self._answer(self._answers.unsuback(packet.packet_id, codes), changed=bool(ended))

    def leave(self) -> None:
        """The connection is gone; a stored session keeps its subscriptions."""
        self._index.remove(self._connection, self._parsed(self.subscriptions))

    def _grant(self, topic_filter: str, options: int) -> int:
        subscription = parse_subscription(topic_filter)
        known = topic_filter in self.subscriptions
        if subscription is None:
            code = ReasonCode.TOPIC_FILTER_INVALID
        elif not self._client.may_speak_for(subscription.target):
            code = ReasonCode.NOT_AUTHORIZED
        elif not known and len(self.subscriptions) >= self._max:
            code = ReasonCode.QUOTA_EXCEEDED
        else:
            granted = min(options & QOS, 1)
            self.subscriptions[topic_filter] = options & ~QOS | granted
            return granted
        self._log.warning(
            "mqtt.subscription_refused",
            client_id=self._client.id,
            topic_filter=ascii(topic_filter[:80]),
        )
        return code

    def _allowed(self, topic_filter: str) -> Subscription | None:
        subscription = parse_subscription(topic_filter)
        if subscription is None or not self._client.may_speak_for(subscription.target):
            return None
        return subscription

    def _answer(self, answer: bytes, *, changed: bool) -> None:
        if not answer:
            detail = "the answer is larger than the client takes"
            self._connection.close(CloseReason.PACKET_TOO_LARGE, detail)
        elif self._save is not None and changed:
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
