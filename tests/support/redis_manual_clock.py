"""The Redis coordinator on a clock of its own: a real server, asked without letting time pass."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis

from edgehub.devices.affinity.coordinator import Notice
from edgehub.devices.affinity.in_process import Record
from edgehub.devices.affinity.redis_coordinator import RedisCoordinator
from edgehub.redis_link.faults import RedisRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.redis_link.script import Script


class BlockingLink:
    """Stands in for `RedisLink`: each command is asked and answered at once.

    A read that would wait in the server waits here until a script has run.
    """

    def __init__(self, port: int) -> None:
        self._client = redis.Redis(port=port, protocol=2)
        self._ran = asyncio.Event()

    def command(self, *command: Any) -> Any:
        """Carry out a command; answers are as the protocol has them."""
        connection = self._client.connection_pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        except redis.ResponseError as error:
            raise RedisRefusedError("ERR", str(error)) from error
        finally:
            self._client.connection_pool.release(connection)

    async def run(self, script: Script, keys: list, arguments: list) -> Any:
        """See `RedisLink`."""
        answer = self.command("EVAL", script.text, len(keys), *keys, *arguments)
        if arguments[0] != "look":
            self._ran.set()
            self._ran = asyncio.Event()
        return answer

    def reader(self) -> BlockingLink:
        """See `RedisLink`."""
        return self

    async def call(self, *command: Any, block_s: float) -> Any:
        """See `BlockingReader`; it ends its waiting with the next script."""
        del block_s
        at = command.index("BLOCK") if "BLOCK" in command else None
        if at is None:
            return self.command(*command)
        command = (*command[:at], *command[at + 2 :])
        answer = self.command(*command)
        if answer is None:
            await self._ran.wait()
            answer = self.command(*command)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class TimedRedisCoordinator(RedisCoordinator):
    """The product's coordinator, with what a simulation wants of it beside the contract."""

    def __init__(
        self, link: BlockingLink, prefix: str, told: Callable[[str, Notice], None] | None = None
    ) -> None:
        super().__init__(link, prefix=prefix)
        self._sync = link
        self._told = told

    async def elect(self, ballot) -> Any:
        """See `Coordinator`."""
        verdict = await super().elect(ballot)
        if verdict.former and self._told is not None:
            notice = Notice(
                position="", device_id=ballot.device_id, epoch=verdict.epoch, owner=verdict.owner
            )
            self._told(verdict.former, notice)
        return verdict

    def record(self, device_id: str, f_cnt: int | None, owner: str, *, generation: int) -> None:
        """See `SimulatedCoordinator`."""
        epoch = self._sync.command("HINCRBY", f"{self._prefix}fleet", "epoch", 1)
        fields = {
            "owner": owner,
            "f_cnt": "" if f_cnt is None else f_cnt,
            "epoch": epoch,
            "generation": generation,
            "f_cnt_down": 0,
        }
        parts = [part for field in fields.items() for part in field]
        self._sync.command("HSET", self._record(device_id), *parts)

    def known(self, device_id: str) -> Record | None:
        """See `SimulatedCoordinator`."""
        found = self._sync.command(
            "HMGET", self._record(device_id), "owner", "f_cnt", "epoch", "generation"
        )
        owner, f_cnt, epoch, generation = found
        if owner is None:
            return None
        return Record(
            f_cnt=int(f_cnt) if f_cnt else None,
            owner=owner.decode(),
            epoch=int(epoch),
            generation=int(generation),
        )

    def forget(self, device_id: str) -> None:
        """See `SimulatedCoordinator`."""
        self._sync.command("DEL", self._record(device_id))

    def position(self, hub_id: str) -> str:
        """See `SimulatedCoordinator`."""
        fleet = f"{self._prefix}fleet"
        self._sync.command("HSETNX", fleet, "incarnation", "simulated")
        incarnation, count = self._sync.command("HMGET", fleet, "incarnation", f"notices:{hub_id}")
        return f"{incarnation.decode()}-{int(count or 0)}"
