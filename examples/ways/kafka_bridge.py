"""A local transaction and a record in Kafka: both, or neither. Usage: kafka_bridge.py ENDPOINT KAFKA TOPIC.

The order is committed in SQLite together with a half message's verdict; the bridge carries the message to Kafka.
"""

import sys
import threading

from confluent_kafka import Consumer
from sqlalchemy import create_engine, text

from halfmq_connect.kafka import BridgeSettings, KafkaBridge
from producer_sdk import Admin, TransactionProducer
from producer_sdk.fence import TransactionFence

endpoint, kafka, topic = sys.argv[1:] or sys.exit(__doc__)
with Admin(endpoint) as admin:
    admin.create_topic(topic, exist_ok=True)

bridge = KafkaBridge(endpoint, kafka, [topic], name=topic, settings=BridgeSettings(create_topics=True))
carrying = threading.Thread(target=bridge.run)
carrying.start()

engine = create_engine("sqlite:///kafka-shop.db")
with engine.begin() as database:
    database.execute(text("CREATE TABLE IF NOT EXISTS orders (content VARCHAR(200) NOT NULL)"))
fence = TransactionFence(engine)
fence.create_tables()
with TransactionProducer(endpoint, "shop", fence) as producer:
    for order, paid in (("three apples", True), ("a boat", False), ("a lamp", True)):
        with producer.transaction(engine) as tx:
            tx.connection.execute(text("INSERT INTO orders (content) VALUES (:order)"), {"order": order})
            tx.send(topic, order, message_group="customer-7")
            if not paid:
                tx.rollback("not paid")

settings = {"bootstrap.servers": kafka, "group.id": topic, "isolation.level": "read_committed"}
consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
arrived: list[str] = []
while len(arrived) < 2 and carrying.is_alive():
    record = consumer.poll(1.0)
    if record is not None and record.error() is None:
        arrived.append((record.value() or b"").decode())
print("in Kafka:", ", ".join(arrived))
consumer.close()
bridge.stop()
carrying.join()
engine.dispose()
