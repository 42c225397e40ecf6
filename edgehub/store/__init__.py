"""Durable state: queues, dead letters, sessions in one SQLite file."""

from edgehub.store.dead_letters import DeadLetter
from edgehub.store.options import StoreOptions
from edgehub.store.queue import Queue
from edgehub.store.sessions import SessionTable, StoredSession
from edgehub.store.statistics import QueueState, QueueStatistics, StoreStatistics
from edgehub.store.store import Store

__all__ = [
    "DeadLetter",
    "Queue",
    "QueueState",
    "QueueStatistics",
    "SessionTable",
    "Store",
    "StoreOptions",
    "StoreStatistics",
    "StoredSession",
]
