"""Alarms behind bulk in a priority queue of RabbitMQ: amqp_race.py PORT LINK_PORT BULK ALARMS RATE.

Publishes at PORT and consumes through LINK_PORT; runs where `pika` is installed. One line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time

import pika

QUEUE = "race"
PREFETCH = 10
BODY = b"x" * 200
ALARM_PRIORITY = 9


def channel(port: int) -> pika.channel.Channel:
    """Return a channel of a new connection."""
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()


def consume(port: int, alarms: int, waits_s: list[float]) -> None:
    """Acknowledge one message after the other until all alarms have come."""
    consumer = channel(port)
    consumer.basic_qos(prefetch_count=PREFETCH)
    for method, properties, body in consumer.consume(QUEUE):
        consumer.basic_ack(method.delivery_tag)
        if properties.priority == ALARM_PRIORITY:
            waits_s.append(time.monotonic() - float(body.split()[0]))
            if len(waits_s) == alarms:
                return


def main() -> None:
    """Publish bulk, then alarms one by one while it is consumed."""
    port, link_port, bulk, alarms, rate = map(int, sys.argv[1:])
    publisher = channel(port)
    publisher.confirm_delivery()
    publisher.queue_declare(
        QUEUE, durable=True, arguments={"x-queue-type": "classic", "x-max-priority": 10}
    )

    def publish(body: bytes, priority: int) -> None:
        properties = pika.BasicProperties(priority=priority, delivery_mode=2)
        publisher.basic_publish("", QUEUE, body, properties)

    for _ in range(bulk):
        publish(BODY, 0)
    waits_s: list[float] = []
    consumer = threading.Thread(target=consume, args=(link_port, alarms, waits_s))
    consumer.start()
    for _ in range(alarms):
        time.sleep(1 / rate)
        publish(f"{time.monotonic()} ".encode().ljust(len(BODY), b"x"), ALARM_PRIORITY)
    consumer.join()
    print(json.dumps({"p50_ms": statistics.median(waits_s) * 1e3, "max_ms": max(waits_s) * 1e3}))


if __name__ == "__main__":
    main()
