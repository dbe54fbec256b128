"""The load generator for RocketMQ's own Java client: its source, how it is built, and how a load is run."""
