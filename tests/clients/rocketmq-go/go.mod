module rocketmq-go

go 1.22

require github.com/apache/rocketmq-client-go/v2 v2.1.2
