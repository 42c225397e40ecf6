"""The subscriptions of one client: SUBSCRIBE, UNSUBSCRIBE, and the return of a stored session.

Owns the client's subscriptions while it is connected. Invariant: a change of a stored session is
durable before it is acknowledged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from edgehub.heads.mqtt.statistics import CloseReason
from edgehub.heads.mqtt.topics import parse_subscription
from edgehub.mqtt.reasons import FIRST_FAILURE, ReasonCode
from edgehub.mqtt.subscription_options import QOS, REPLAY_IF_NEW, REPLAY_NEVER, retain_handling
from edgehub.mqtt.topic_filter import SHARED, filter_fault, split_share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.local.client import LocalClient
    from edgehub.heads.mqtt.responses import Responses
    from edgehub.heads.mqtt.sign_in import SignedInClient
    from edgehub.heads.mqtt.subscriptions import SubscriptionIndex
    from edgehub.heads.mqtt.topics import Subscription
    from edgehub.message import Refusal
    from edgehub.mqtt.packets import Subscribe, Unsubscribe
    from edgehub.store.row_changes import Settle
    from edgehub.telemetry.log_limit import LogLimit

UNANSWERED_MAX: Final = 64
"""Changes of a stored session that may wait for the disk before the client is not read any more."""


class Save(Protocol):
    """Stores the session."""

    def __call__(self, settle: Settle, *, changed: bool) -> None:
        """Call `settle` once the session is durable as it is now.

        Args:
            settle: Called with 0, and why it could not be stored.
            changed: Whether it has changed since the last call.
        """


class Subscriber:
    """Subscriptions of one client.

    Args:
        connection: Of the client.
        responses: In the client's protocol version.
        client: For its rights.
        index: The listener's index.
        local: The client in the local topic space.
        subscriptions: Options by filter, the granted quality of service in the lowest two bits;
            kept up to date here.
        subscriptions_max: Most of them.
        added_options: Options of MQTT 5 that are added to all of them.
        save: See `Save`; None = a clean session.
        log: For refusals.
    """

    __slots__ = (
        "_added_options",
        "_client",
        "_connection",
        "_index",
        "_local",
        "_log",
        "_max",
        "_responses",
        "_save",
        "_unanswered",
        "subscriptions",
    )

    def __init__(  # noqa: PLR0913 - the client and its parts, each by name
        self,
        connection: ClientConnection,
        responses: Responses,
        client: SignedInClient,
        index: SubscriptionIndex,
        local: LocalClient,
        subscriptions: dict[str, int],
        *,
        subscriptions_max: int,
        added_options: int,
        save: Save | None,
        log: LogLimit,
    ) -> None:
        self._connection = connection
        self._responses = responses
        self._client = client
        self._index = index
        self._local = local
        self._max = subscriptions_max
        self._added_options = added_options
        self._save = save
        self._log = log
        self._unanswered = 0
        self.subscriptions = subscriptions

    @property
    def must_pause(self) -> bool:
        """Whether so many answers wait for the disk that no further request should be read."""
        return self._unanswered >= UNANSWERED_MAX

    def restore(self) -> None:
        """Restore a stored session, without subscriptions that are not allowed any more."""
        for topic_filter, options in list(self.subscriptions.items()):
            subscription = self._parse(topic_filter)
            if self._refusal(topic_filter, subscription) is not None:
                del self.subscriptions[topic_filter]
                self._local.unsubscribe(topic_filter)
            else:
                self._begin(topic_filter, subscription, options)

    def subscribe(self, packet: Subscribe) -> None:
        """Grant the filters of a SUBSCRIBE that the client has a right to, and refuse the rest."""
        before = dict(self.subscriptions)
        codes = []
        replays: dict[str, int] = {}
        for name, options in packet.filters:
            is_new = name not in self.subscriptions
            code = self._grant(name, options | self._added_options)
            codes.append(code)
            handling = retain_handling(options)
            if code >= FIRST_FAILURE or handling == REPLAY_NEVER or name.startswith(SHARED):
                replays.pop(name, None)
            elif is_new or handling != REPLAY_IF_NEW:
                replays[name] = self.subscriptions[name]
        answer = self._responses.suback(packet.packet_id, codes)
        self._answer(answer, replays, changed=self.subscriptions != before)

    def unsubscribe(self, packet: Unsubscribe) -> None:
        """End the subscriptions of an UNSUBSCRIBE; unknown ones are acknowledged too."""
        ended = []
        codes = []
        for name in packet.filters:
            known = self.subscriptions.pop(name, None) is not None
            if known:
                code = ReasonCode.SUCCESS
            elif filter_fault(split_share(name)[1]):
                code = ReasonCode.TOPIC_FILTER_INVALID
            else:
                code = ReasonCode.NO_SUBSCRIPTION_EXISTED
            codes.append(code)
            if known:
                ended.append(name)
                self._local.unsubscribe(name)
        self._index.remove(self._connection, self._parsed(ended))
        self._answer(self._responses.unsuback(packet.packet_id, codes), {}, changed=bool(ended))

    def leave(self) -> None:
        """Remove the subscriptions from the index; a stored session keeps them."""
        self._index.remove(self._connection, self._parsed(self.subscriptions))

    def _grant(self, topic_filter: str, options: int) -> int:
        subscription = self._parse(topic_filter)
        code = self._refusal(topic_filter, subscription)
        if code is None:
            self.subscriptions[topic_filter] = options
            self._begin(topic_filter, subscription, options)
            return options & QOS
        self._log.warning(
            "mqtt.subscription_refused",
            client_id=self._client.id,
            topic_filter=ascii(topic_filter[:80]),
        )
        return code

    def _refusal(self, topic_filter: str, subscription: Subscription | None) -> ReasonCode | None:
        if subscription is None:
            code = self._local.refusal(topic_filter)
        else:
            allowed = self._client.may_speak_for(subscription.target)
            code = None if allowed else ReasonCode.NOT_AUTHORIZED
        is_new = topic_filter not in self.subscriptions
        if code is None and is_new and len(self.subscriptions) >= self._max:
            code = ReasonCode.QUOTA_EXCEEDED
        return code

    def _begin(self, topic_filter: str, subscription: Subscription | None, options: int) -> None:
        if subscription is None:
            self._local.subscribe(topic_filter, options)
        else:
            self._index.add(self._connection, subscription, options)

    def _answer(self, answer: bytes, replays: dict[str, int], *, changed: bool) -> None:
        if not answer:
            detail = "the answer is larger than the client takes"
            self._connection.close(CloseReason.PACKET_TOO_LARGE, detail)
        elif self._save is not None:
            self._unanswered += 1
            self._save(partial(self._answer_stored, answer, replays), changed=changed)
        else:
            self._write(answer, replays)

    def _answer_stored(
        self, answer: bytes, replays: dict[str, int], _token: int, refusal: Refusal | None
    ) -> None:
        self._unanswered -= 1
        if refusal is None:
            self._write(answer, replays)
        self._connection.session_stored(refusal)

    def _write(self, answer: bytes, replays: dict[str, int]) -> None:
        self._connection.write(answer)
        for topic_filter, options in replays.items():
            # A later packet may have ended it while this answer waited for the disk.
            if topic_filter in self.subscriptions and self._parse(topic_filter) is None:
                self._local.replay(topic_filter, options)

    def _parse(self, topic_filter: str) -> Subscription | None:
        subscription = parse_subscription(topic_filter, self._client.id)
        if subscription is None or not self._index.serves(subscription):
            return None
        return subscription

    def _parsed(self, filters: Iterable[str]) -> list[Subscription]:
        parsed = map(self._parse, filters)
        return [subscription for subscription in parsed if subscription is not None]
