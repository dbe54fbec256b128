"""Delayed delivery for Apache Kafka: an inlet from a Kafka topic, and an outlet to Kafka topics.

    producer -> topic `timers` -> inlet -> the log and its wheel -> outlet -> Kafka topics -> consumer

Only `front` may be imported without the extra `kafka`.
"""
