// RocketMQ's gRPC client for Go, driven by lines of JSON: see tests/harness/grpc_clients.py.
//
// This client knows no recalls, and does not tell its program that the end of a transaction was refused.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

type command struct {
	Do          string            `json:"do"`
	Topic       string            `json:"topic"`
	Body        string            `json:"body"`
	Group       *string           `json:"group"`
	Tag         *string           `json:"tag"`
	Keys        []string          `json:"keys"`
	Properties  map[string]string `json:"properties"`
	DelayMs     int64             `json:"delay_ms"`
	Tags        *string           `json:"tags"`
	Count       *int              `json:"count"`
	InvisibleMs *int64            `json:"invisible_ms"`
	WaitMs      *int64            `json:"wait_ms"`
	MessageID   string            `json:"message_id"`
	Ms          int64             `json:"ms"`
	Failures    int               `json:"failures"`
	Outcome     string            `json:"outcome"`
	How         string            `json:"how"`
}

type object = map[string]any

type received struct {
	consumer rmq.SimpleConsumer
	message  *rmq.MessageView
}

// arrivals holds messages that came from the service, and wakes those that wait for more.
type arrivals struct {
	lock     sync.Mutex
	more     *sync.Cond
	messages []object
}

func newArrivals() *arrivals {
	made := &arrivals{}
	made.more = sync.NewCond(&made.lock)
	return made
}

func (a *arrivals) add(message *rmq.MessageView) int {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.messages = append(a.messages, shown(message))
	a.more.Broadcast()
	return len(a.messages)
}

func (a *arrivals) wait(count int) object {
	a.lock.Lock()
	defer a.lock.Unlock()
	for len(a.messages) < count {
		a.more.Wait()
	}
	return object{"messages": a.messages}
}

type driver struct {
	config     rmq.Config
	producers  map[string]rmq.Producer
	transactor rmq.Producer
	checked    *arrivals
	begun      map[string]rmq.Transaction
	consumers  map[string]rmq.SimpleConsumer
	views      map[string]received
	listeners  map[string]*arrivals
}

func (d *driver) run(given command) (object, error) {
	switch given.Do {
	case "send":
		return d.send(given)
	case "receive":
		return d.receive(given)
	case "ack":
		held := d.views[given.MessageID]
		return object{}, held.consumer.Ack(context.Background(), held.message)
	case "hide":
		held := d.views[given.MessageID]
		duration := time.Duration(given.Ms) * time.Millisecond
		return object{}, held.consumer.ChangeInvisibleDuration(held.message, duration)
	case "push":
		return d.push(given)
	case "consumed":
		return d.listeners[given.Topic].wait(*given.Count), nil
	case "begin":
		return d.begin(given)
	case "end":
		if given.How == "COMMIT" {
			return object{}, d.begun[given.MessageID].Commit()
		}
		return object{}, d.begun[given.MessageID].RollBack()
	case "checked":
		return d.checked.wait(*given.Count), nil
	}
	return nil, fmt.Errorf("this client does not know %q", given.Do)
}

func (d *driver) send(given command) (object, error) {
	producer := d.producers[given.Topic]
	if producer == nil {
		// A producer that names no topic never finds a service, and its start never ends.
		made, err := rmq.NewProducer(&d.config, rmq.WithTopics(given.Topic))
		if err != nil {
			return nil, err
		}
		if err := made.Start(); err != nil {
			return nil, err
		}
		producer = made
		d.producers[given.Topic] = made
	}
	message := &rmq.Message{Topic: given.Topic, Body: []byte(given.Body), Tag: given.Tag}
	message.SetKeys(given.Keys...)
	for name, value := range given.Properties {
		message.AddProperty(name, value)
	}
	if given.Group != nil {
		message.SetMessageGroup(*given.Group)
	}
	if given.DelayMs > 0 {
		message.SetDelayTimestamp(time.Now().Add(time.Duration(given.DelayMs) * time.Millisecond))
	}
	receipts, err := producer.Send(context.Background(), message)
	if err != nil {
		return nil, err
	}
	return object{"id": receipts[0].MessageID, "handle": ""}, nil
}

func (d *driver) begin(given command) (object, error) {
	if d.transactor == nil {
		outcome := map[string]rmq.TransactionResolution{"COMMIT": rmq.COMMIT, "ROLLBACK": rmq.ROLLBACK}[given.Outcome]
		check := func(message *rmq.MessageView) rmq.TransactionResolution {
			d.checked.add(message)
			return outcome
		}
		producer, err := rmq.NewProducer(&d.config, rmq.WithTopics(given.Topic),
			rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
		if err != nil {
			return nil, err
		}
		if err := producer.Start(); err != nil {
			return nil, err
		}
		d.transactor = producer
	}
	transaction := d.transactor.BeginTransaction()
	message := &rmq.Message{Topic: given.Topic, Body: []byte(given.Body)}
	receipts, err := d.transactor.SendWithTransaction(context.Background(), message, transaction)
	if err != nil {
		return nil, err
	}
	d.begun[receipts[0].MessageID] = transaction
	return object{"id": receipts[0].MessageID, "transaction": receipts[0].TransactionId}, nil
}

func (d *driver) receive(given command) (object, error) {
	tags, count, invisible, wait := filter(given.Tags), 32, 15*time.Second, 5*time.Second
	if given.Count != nil {
		count = *given.Count
	}
	if given.InvisibleMs != nil {
		invisible = time.Duration(*given.InvisibleMs) * time.Millisecond
	}
	if given.WaitMs != nil {
		wait = time.Duration(*given.WaitMs) * time.Millisecond
	}
	name := fmt.Sprintf("%s %s %v %v", given.Topic, *given.Group, given.Tags, wait)
	consumer := d.consumers[name]
	if consumer == nil {
		config := d.config
		config.ConsumerGroup = *given.Group
		made, err := rmq.NewSimpleConsumer(&config, rmq.WithSimpleAwaitDuration(wait),
			rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{given.Topic: tags}))
		if err != nil {
			return nil, err
		}
		if err := made.Start(); err != nil {
			return nil, err
		}
		consumer = made
		d.consumers[name] = made
	}
	found, err := consumer.Receive(context.Background(), int32(count), invisible)
	if status, is := rmq.AsErrRpcStatus(err); is && status.Code == int32(v2.Code_MESSAGE_NOT_FOUND) {
		err = nil
	}
	messages := []object{}
	for _, message := range found {
		d.views[message.GetMessageId()] = received{consumer, message}
		messages = append(messages, shown(message))
	}
	return object{"messages": messages}, err
}

func (d *driver) push(given command) (object, error) {
	arrived := newArrivals()
	d.listeners[given.Topic] = arrived
	consume := func(message *rmq.MessageView) rmq.ConsumerResult {
		if arrived.add(message) <= given.Failures {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	config := d.config
	config.ConsumerGroup = *given.Group
	consumer, err := rmq.NewPushConsumer(&config, rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{given.Topic: filter(given.Tags)}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}))
	if err != nil {
		return nil, err
	}
	return object{}, consumer.Start()
}

func filter(tags *string) *rmq.FilterExpression {
	if tags == nil {
		return rmq.SUB_ALL
	}
	return rmq.NewFilterExpression(*tags)
}

func shown(message *rmq.MessageView) object {
	keys := append([]string{}, message.GetKeys()...)
	sort.Strings(keys)
	return object{
		"id": message.GetMessageId(), "body": string(message.GetBody()), "tag": message.GetTag(),
		"keys": keys, "group": message.GetMessageGroup(), "attempt": message.GetDeliveryAttempt(),
		"properties": message.GetProperties(), "corrupted": false, // this client does not show corrupted ones
	}
}

// codeOf returns the code of the service in an error, which the client may have wrapped.
func codeOf(err error) int32 {
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) {
		return status.Code
	}
	return 0
}

func main() {
	os.Setenv("rocketmq.client.logRoot", ".")
	rmq.ResetLogger()
	rmq.EnableSsl = os.Args[3] == "tls"
	d := &driver{
		config: rmq.Config{
			Endpoint:    os.Args[1],
			Credentials: &credentials.SessionCredentials{AccessKey: os.Args[2], AccessSecret: "any"},
		},
		checked: newArrivals(), begun: map[string]rmq.Transaction{}, consumers: map[string]rmq.SimpleConsumer{},
		producers: map[string]rmq.Producer{}, views: map[string]received{}, listeners: map[string]*arrivals{},
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var given command
		answer, err := object(nil), json.Unmarshal(lines.Bytes(), &given)
		if err == nil {
			answer, err = d.run(given)
		}
		if err != nil {
			answer = object{"error": codeOf(err), "detail": err.Error()}
		}
		text, _ := json.Marshal(answer)
		fmt.Println("@" + string(text))
	}
}
