"""The index of subscriptions: who is found, and what watchers hear."""

from edgehub.heads.mqtt.subscriptions import SubscriptionIndex
from edgehub.heads.mqtt.topics import ClientTopic, client_prefixes, parse_subscription
from tests.support.mqtt_listener import Changes


def parsed(topic_filter: str, client_id: str = "c"):
    """Parse a filter that must be one."""
    subscription = parse_subscription(topic_filter, client_id)
    assert subscription is not None
    return subscription


BOUND = parsed("devices/d/messages/devicebound/#")
ALL = parsed("devices/hub/modules/m/#")
ONE = parsed("devices/hub/modules/m/inputs/i/#")


async def test_found_by_prefix():
    """The exact input is preferred to the whole module, the later connection to the earlier."""
    index = SubscriptionIndex("hub")
    index.add("a", ALL, 0)
    assert index.input_listener("m", "i") == ("a", 0)
    index.add("b", ONE, 1)
    assert index.input_listener("m", "i") == ("b", 1)
    assert index.input_listener("m", "other") == ("a", 0)
    index.add("c", ALL, 1)
    assert index.input_listener("m", "other") == ("c", 1)
    assert index.input_listener("n", "i") is None


async def test_interest_in_device_bound():
    """Interest begins with the first listener and ends with the last, told once each."""
    interest = Changes()
    index = SubscriptionIndex("hub")
    index.follow(ClientTopic.MESSAGES, interest)
    index.add("a", BOUND, 1)
    index.add("a", BOUND, 0)
    index.add("b", BOUND, 1)
    assert index.find("d", client_prefixes("d", ClientTopic.MESSAGES)) == ("b", 1)
    index.remove("b", [BOUND])
    index.remove("b", [BOUND])
    index.remove("a", [BOUND, ALL])
    assert interest.all == [("d", True), ("d", False)]


async def test_watchers_hear_changes_only():
    """Overlapping subscriptions of one module do not make a watcher hear things twice."""
    index = SubscriptionIndex("hub")
    one, other = Changes(), Changes()
    index.watch("m", "i", one)
    index.watch("m", "other", other)
    index.add("a", ONE, 1)
    index.add("a", ALL, 1)
    index.remove("a", [ONE])
    index.remove("a", [ALL])
    assert one.all == [(True,), (False,)]
    assert other.all == [(True,), (False,)]


async def test_a_watcher_that_comes_late():
    """Whoever watches an input that is listened to hears the end, not the beginning."""
    index = SubscriptionIndex("hub")
    index.add("a", ALL, 1)
    late = Changes()
    index.watch("m", "i", late)
    index.remove("a", [ALL])
    assert late.all == [(False,)]


async def test_modules_of_other_hubs_are_not_ours():
    """A module below another device is no module of this hub."""
    index = SubscriptionIndex("hub")
    watch = Changes()
    index.watch("m", "i", watch)
    index.add("a", parsed("devices/child/modules/m/#"), 1)
    assert watch.all == []
    assert index.input_listener("m", "i") is None


async def test_a_module_that_listens_twice():
    """Messages reach a module by its own filter or by that of all its topics, as one listener."""
    index = SubscriptionIndex("hub")
    interest = Changes()
    index.follow(ClientTopic.MESSAGES, interest)
    index.add("a", parsed("devices/d/modules/m/#"), 1)
    index.add("b", parsed("devices/d/modules/m/messages/devicebound/#"), 0)
    assert index.find("d/m", client_prefixes("d/m", ClientTopic.MESSAGES)) == ("b", 0)
    index.remove("b", [parsed("devices/d/modules/m/messages/devicebound/#")])
    index.remove("a", [parsed("devices/d/modules/m/#")])
    assert interest.all == [("d/m", True), ("d/m", False)]


async def test_topics_that_are_the_same_for_all_clients():
    """Each client is found by its own subscription to them, granted only where a part follows."""
    index = SubscriptionIndex("hub")
    first, second = (parsed("$iothub/methods/POST/#", client) for client in ("a", "b"))
    assert not index.serves(first)
    calls = Changes()
    index.follow(ClientTopic.METHODS, calls)
    assert index.serves(first)
    index.add("of-a", first, 1)
    index.add("of-b", second, 0)
    prefixes = client_prefixes("a", ClientTopic.METHODS)
    assert index.find("a", prefixes) == ("of-a", 1)
    assert index.find("c", prefixes) is None
    assert calls.all == [("a", True), ("b", True)]
