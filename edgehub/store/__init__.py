"""Durable state: queues, dead letters, sessions in one SQLite file."""

from edgehub.store.caps import Caps, Overflow
from edgehub.store.damage import Damage
from edgehub.store.dead_letters import DeadLetter
from edgehub.store.local_space import LocalContents, LocalTable, QueuedMessage
from edgehub.store.options import StoreOptions
from edgehub.store.queue import Queue
from edgehub.store.sessions import SessionTable, StoredSession
from edgehub.store.statistics import LimitStatistics, QueueState, QueueStatistics, StoreStatistics
from edgehub.store.store import Store

__all__ = [
    "Caps",
    "Damage",
    "DeadLetter",
    "LimitStatistics",
    "LocalContents",
    "LocalTable",
    "Overflow",
    "Queue",
    "QueueState",
    "QueueStatistics",
    "QueuedMessage",
    "SessionTable",
    "Store",
    "StoreOptions",
    "StoreStatistics",
    "StoredSession",
]
