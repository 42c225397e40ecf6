"""What a client hears of the transaction that should store its change."""

import asyncio

import pytest

from edgehub.errors import StoreError
from edgehub.message import Refusal
from edgehub.store.failure import refusal_of


@pytest.mark.parametrize(
    ("error", "refusal"),
    [(None, None), (StoreError("closed"), Refusal.CLOSED), (KeyError("x"), Refusal.INVALID)],
)
async def test_a_change_is_refused_for_what_ended_its_transaction(error, refusal):
    """On disk is no refusal; a store that closes may be tried again, a fault of the hub not."""
    stored = asyncio.get_running_loop().create_future()
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)
    assert refusal_of(stored, "twins.change_not_stored") is refusal


async def test_a_change_whose_transaction_was_cancelled_is_not_acknowledged():
    """Nothing says that it is on disk."""
    stored = asyncio.get_running_loop().create_future()
    stored.cancel()
    assert refusal_of(stored, "twins.change_not_stored") is Refusal.CLOSED
