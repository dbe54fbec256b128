"""RocketMQ's gRPC protocol, for its 5.x clients in Java, Go, Python, Node, C++, C# and Rust.

Only `front` may be imported without the packages of the extra `grpc`.
"""
