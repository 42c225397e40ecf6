"""Durable state: queues and dead letters in one SQLite file."""

from edgehub.store.caps import Caps, Overflow
from edgehub.store.dead_letters import DeadLetter
from edgehub.store.options import StoreOptions
from edgehub.store.queue import Queue
from edgehub.store.salvage.damage import Damage
from edgehub.store.statistics import LimitStatistics, QueueState, QueueStatistics, StoreStatistics
from edgehub.store.store import Store

__all__ = [
    "Caps",
    "Damage",
    "DeadLetter",
    "LimitStatistics",
    "Overflow",
    "Queue",
    "QueueState",
    "QueueStatistics",
    "Store",
    "StoreOptions",
    "StoreStatistics",
]
