module rocketmq-grpc-go

go 1.22

require github.com/apache/rocketmq-clients/golang/v5 v5.1.3
