"""RocketMQ's remoting protocol: name server and broker on one port, for RocketMQ's own clients."""
