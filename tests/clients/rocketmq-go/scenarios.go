// Runs scenarios with RocketMQ's own client and prints one JSON object a line: name, and what went wrong.
//
// Arguments: address of the name server, a token or "-", then names of scenarios. The scenarios are those of
// tests/clients/rocketmq-java that this client has calls for: it knows neither recalls nor consumers that pop.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const wait = 60 * time.Second // a heartbeat of this client, which tells of new producers, may take 30

var (
	address    string
	token      string
	run        = strconv.FormatInt(time.Now().UnixNano(), 36)
	background = context.Background()
	instances  atomic.Int64
)

var table = map[string]func(){
	"send": send, "delays": delays, "batch": batch, "consume": consume, "tags": tags, "orderly": orderly,
	"broadcast": broadcast, "pull": pull, "retry": retry, "rebalance": rebalance, "transaction": transaction,
	"restart": restart,
}

func main() {
	rlog.SetLogLevel("error")
	address, token = os.Args[1], os.Args[2]
	for _, name := range os.Args[3:] {
		line, _ := json.Marshal(map[string]string{"scenario": name, "problem": problemOf(table[name])})
		fmt.Println(string(line))
	}
}

func problemOf(scenario func()) (problem string) {
	defer func() {
		if found := recover(); found != nil {
			problem = fmt.Sprint(found)
		}
	}()
	scenario()
	return ""
}

// ---------------------------------------------------------------- producers

func send() {
	topic := "send-" + run
	sender := newProducer("senders")
	defer sender.Shutdown()
	one := must(sender.SendSync(background, message(topic, "one")))
	same(primitive.SendOK, one.Status, "status")
	same(32, len(one.OffsetMsgID), "length of the offset id")
	var answered sync.WaitGroup
	var failed atomic.Int64
	answered.Add(100)
	for n := 0; n < 100; n++ {
		check(sender.SendAsync(background, func(_ context.Context, _ *primitive.SendResult, err error) {
			if err != nil {
				failed.Add(1)
			}
			answered.Done()
		}, message(topic, fmt.Sprint("async ", n))))
	}
	answered.Wait()
	same(0, failed.Load(), "failed sends")
	check(sender.SendOneWay(background, message(topic, "one way")))
	large := must(sender.SendSync(background, message(topic, strings.Repeat("x", 20_000))))
	same(primitive.SendOK, large.Status, "status of a compressed message")
	twice := message(topic, "the same object twice")
	first := must(sender.SendSync(background, twice)).OffsetMsgID
	if first == must(sender.SendSync(background, twice)).OffsetMsgID {
		panic("a second send was taken for a repeat")
	}
	received, stop := newConsumer("readers-"+run, topic, "*")
	defer stop()
	counts := map[string]int{}
	for n := 0; n < 105; n++ {
		counts[body(next(received))]++
	}
	same(1, counts[strings.Repeat("x", 20_000)], "compressed messages that came")
	same(1, counts["one way"], "one-way messages that came")
}

func delays() {
	topic := "delays-" + run
	sender := newProducer("delayers")
	defer sender.Shutdown()
	received, stop := newConsumer("delayed-"+run, topic, "*")
	defer stop()
	due := time.Now().Add(time.Second).UnixMilli()
	ways := map[string]string{
		"DELAY": "1", "TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "1200", "TIMER_DELIVER_MS": fmt.Sprint(due),
	}
	for way, value := range ways {
		delayed := message(topic, way)
		delayed.WithProperty(way, value)
		same(primitive.SendOK, must(sender.SendSync(background, delayed)).Status, way)
	}
	for range ways {
		one := next(received)
		same(true, time.Now().UnixMilli() >= due, body(one)+" came when it was due")
	}
}

func batch() {
	topic := "batch-" + run
	sender := newProducer("batchers")
	defer sender.Shutdown()
	sent := must(sender.SendSync(background, message(topic, "0"), message(topic, "1"), message(topic, "2")))
	same(3, len(strings.Split(sent.OffsetMsgID, ",")), "offset ids")
	received, stop := newConsumer("readers-"+run, topic, "*")
	defer stop()
	bodies := map[string]bool{}
	for n := 0; n < 3; n++ {
		bodies[body(next(received))] = true
	}
	same(map[string]bool{"0": true, "1": true, "2": true}, bodies, "messages")
}

// ---------------------------------------------------------------- consumers

func consume() {
	topic := "consume-" + run
	sender := newProducer("producers")
	defer sender.Shutdown()
	sent := map[string]bool{}
	for n := 0; n < 200; n++ {
		one := message(topic, fmt.Sprint(n)).WithKeys([]string{fmt.Sprint("key-", n)})
		one.WithProperty("shop", "north")
		sent[must(sender.SendSync(background, one)).MsgID] = true
	}
	received, stop := newConsumer("readers-"+run, topic, "*")
	for len(sent) > 0 {
		one := next(received)
		same("key-"+body(one), strings.TrimSpace(one.GetKeys()), "key")
		same("north", one.GetProperty("shop"), "property")
		same(0, one.ReconsumeTimes, "reconsume times")
		delete(sent, one.MsgId)
	}
	time.Sleep(time.Second) // the last listener returns, and its offset counts
	stop()
	received, stop = newConsumer("readers-"+run, topic, "*")
	defer stop()
	must(sender.SendSync(background, message(topic, "after the restart")))
	same("after the restart", body(next(received)), "the first after the restart of the consumer")
}

func tags() {
	topic := "tags-" + run
	sender := newProducer("producers")
	defer sender.Shutdown()
	for n := 0; n < 30; n++ {
		must(sender.SendSync(background, message(topic, "m").WithTag(string("ABC"[n%3]))))
	}
	received, stop := newConsumer("tagged-"+run, topic, "A || B")
	defer stop()
	counts := map[string]int{}
	for n := 0; n < 20; n++ {
		counts[next(received).GetTags()]++
	}
	same(map[string]int{"A": 10, "B": 10}, counts, "messages by tag")
}

func orderly() {
	topic := "orderly-" + run
	sender := newProducer("producers", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	defer sender.Shutdown()
	received, stop := newConsumer("ordered-"+run, topic, "*", consumer.WithConsumerOrder(true))
	defer stop()
	for n := 0; n < 100; n++ {
		must(sender.SendSync(background, message(topic, fmt.Sprint(n)).WithShardingKey(fmt.Sprint("key ", n%10))))
	}
	seen := map[int][]int{}
	for n := 0; n < 100; n++ {
		one := next(received)
		seen[one.Queue.QueueId] = append(seen[one.Queue.QueueId], must(strconv.Atoi(body(one))))
	}
	for queue, numbers := range seen {
		same(true, sort.IntsAreSorted(numbers), fmt.Sprint("order within queue ", queue, ": ", numbers))
	}
}

func broadcast() {
	topic := "broadcast-" + run
	sender := newProducer("producers")
	defer sender.Shutdown()
	var all []chan *primitive.MessageExt
	for n := 0; n < 2; n++ {
		received, stop := newConsumer("broadcast-"+run, topic, "*", consumer.WithConsumerModel(consumer.BroadCasting))
		defer stop()
		all = append(all, received)
	}
	for n := 0; n < 20; n++ {
		must(sender.SendSync(background, message(topic, fmt.Sprint(n))))
	}
	for _, received := range all {
		bodies := map[string]bool{}
		for len(bodies) < 20 {
			bodies[body(next(received))] = true
		}
	}
}

func pull() {
	topic := "pull-" + run
	sender := newProducer("producers")
	defer sender.Shutdown()
	for n := 0; n < 50; n++ {
		must(sender.SendSync(background, message(topic, fmt.Sprint(n))))
	}
	same(50, len(polled(topic, 50)), "messages")
	must(sender.SendSync(background, message(topic, "after")))
	same([]string{"after"}, polled(topic, 1), "messages after the acknowledged ones")
}

// polled returns the bodies that a new consumer polls and acknowledges, until there were so many.
func polled(topic string, count int) (bodies []string) {
	options := append(consumerOptions("pollers-"+run), consumer.WithInstance(instance()))
	puller := must(rocketmq.NewPullConsumer(options...))
	check(puller.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	check(puller.Start())
	defer puller.Shutdown()
	for end := time.Now().Add(wait); len(bodies) < count && time.Now().Before(end); {
		found, err := puller.Poll(background, time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		check(err)
		for _, one := range found.GetMsgList() {
			bodies = append(bodies, body(one))
		}
		puller.ACK(background, found, consumer.ConsumeSuccess)
	}
	check(puller.PersistOffset(background, topic))
	return bodies
}

func retry() {
	topic, group := "retry-"+run, "retriers-"+run
	sender := newProducer("producers")
	defer sender.Shutdown()
	attempts := make(chan *primitive.MessageExt, 100)
	stop := listen(group, topic, "*", func(ctx context.Context, found ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range found {
			attempts <- one
		}
		if concurrently, is := primitive.GetConcurrentlyCtx(ctx); is {
			concurrently.DelayLevelWhenNextConsume = 1
		}
		return consumer.ConsumeRetryLater, nil
	}, consumer.WithMaxReconsumeTimes(2), consumer.WithInstance(instance()))
	defer stop()
	sent := must(sender.SendSync(background, message(topic, "poison")))
	for n := 0; n <= 2; n++ {
		one := next(attempts)
		same(n, one.ReconsumeTimes, "reconsume times")
		same(topic, one.Topic, "topic")
	}
	dead, stopDead := newConsumer("undertakers-"+run, "%DLQ%"+group, "*")
	defer stopDead()
	letter := next(dead)
	same("poison", body(letter), "body of the dead letter")
	same(sent.MsgID, letter.MsgId, "id of the dead letter")
	same(0, len(attempts), "more attempts")
}

func rebalance() {
	topic, group := "rebalance-"+run, "sharers-"+run
	sender := newProducer("producers")
	defer sender.Shutdown()
	first, stopFirst := newConsumer(group, topic, "*")
	defer stopFirst()
	must(sender.SendSync(background, message(topic, "begin")))
	next(first)
	second, stopSecond := newConsumer(group, topic, "*")
	for end := time.Now().Add(wait); len(second) == 0; time.Sleep(20 * time.Millisecond) {
		same(true, time.Now().Before(end), "the second consumer got a queue")
		must(sender.SendSync(background, message(topic, "shared")))
	}
	stopSecond()
	for n := 0; n < 40; n++ {
		must(sender.SendSync(background, message(topic, fmt.Sprint("after ", n))))
	}
	left := map[string]bool{}
	for len(left) < 40 {
		if text := body(next(first)); strings.HasPrefix(text, "after") {
			left[text] = true
		}
	}
}

// restart loses no message although the service is killed and started again after this says that it sends.
func restart() {
	topic := "restart-" + run
	sender := newProducer("producers", producer.WithRetry(10))
	defer sender.Shutdown()
	received, stop := newConsumer("survivors-"+run, topic, "*")
	defer stop()
	missing := map[string]bool{}
	for n := 0; n < 600; n++ {
		one := message(topic, fmt.Sprint(n))
		if n%3 == 0 {
			one.WithProperty("TIMER_DELAY_MS", fmt.Sprint(n*10))
		}
		for end := time.Now().Add(wait); ; time.Sleep(200 * time.Millisecond) {
			sent, err := sender.SendSync(background, one)
			if err == nil && sent.Status == primitive.SendOK {
				missing[sent.MsgID] = true
				break
			}
			same(true, time.Now().Before(end), fmt.Sprint("a send succeeded within a minute: ", err))
		}
		if n == 200 {
			fmt.Println(`{"event":"sending"}`)
		}
		time.Sleep(5 * time.Millisecond)
	}
	for len(missing) > 0 {
		delete(missing, next(received).MsgId)
	}
}

// ---------------------------------------------------------------- transactions

// ends ends transactions as their bodies say; others it commits or rolls back when it is asked.
type ends struct{ asked chan *primitive.MessageExt }

func (e ends) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	return map[string]primitive.LocalTransactionState{
		"commit": primitive.CommitMessageState, "rollback": primitive.RollbackMessageState,
		"asked": primitive.UnknowState, "asked rollback": primitive.UnknowState,
	}[string(one.Body)]
}

func (e ends) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	e.asked <- one
	if body(one) == "asked rollback" {
		return primitive.RollbackMessageState
	}
	return primitive.CommitMessageState
}

func transaction() {
	topic := "transaction-" + run
	listener := ends{make(chan *primitive.MessageExt, 100)}
	payer := must(rocketmq.NewTransactionProducer(listener, producerOptions("payers")...))
	check(payer.Start())
	defer payer.Shutdown()
	received, stop := newConsumer("paid-"+run, topic, "*")
	defer stop()
	ids := map[string]string{}
	for _, text := range []string{"commit", "rollback", "asked", "asked rollback"} {
		sent := must(payer.SendMessageInTransaction(background, message(topic, text)))
		same(primitive.SendOK, sent.Status, text)
		ids[text] = sent.MsgID
	}
	got := map[string]bool{}
	for n := 0; n < 2; n++ {
		one := next(received)
		same(ids[body(one)], one.MsgId, "id of what was received")
		got[body(one)] = true
	}
	same(map[string]bool{"commit": true, "asked": true}, got, "messages")
	asked := map[string]bool{}
	for len(asked) < 2 {
		asked[body(next(listener.asked))] = true
	}
	same(map[string]bool{"asked": true, "asked rollback": true}, asked, "checked messages")
	same(0, len(received), "more messages")
}

// ---------------------------------------------------------------- what the scenarios share

func instance() string {
	return fmt.Sprint("go-", run, "-", instances.Add(1))
}

func credentials() primitive.Credentials {
	if token == "-" {
		return primitive.Credentials{}
	}
	return primitive.Credentials{AccessKey: token, SecretKey: "unused"}
}

func producerOptions(group string) []producer.Option {
	return []producer.Option{
		producer.WithNameServer([]string{address}), producer.WithGroupName(group + "-" + run),
		producer.WithInstanceName(instance()), producer.WithCredentials(credentials()),
	}
}

func consumerOptions(group string) []consumer.Option {
	return []consumer.Option{
		consumer.WithNameServer([]string{address}), consumer.WithGroupName(group),
		consumer.WithCredentials(credentials()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
}

func newProducer(group string, options ...producer.Option) rocketmq.Producer {
	made := must(rocketmq.NewProducer(append(producerOptions(group), options...)...))
	check(made.Start())
	return made
}

// newConsumer starts a consumer; returns what it receives, and what stops it.
func newConsumer(group, topic, tags string, options ...consumer.Option) (chan *primitive.MessageExt, func()) {
	received := make(chan *primitive.MessageExt, 10_000)
	stop := listen(group, topic, tags, func(_ context.Context, found ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range found {
			received <- one
		}
		return consumer.ConsumeSuccess, nil
	}, append(options, consumer.WithInstance(instance()))...)
	return received, stop
}

type listener = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func listen(group, topic, tags string, heard listener, options ...consumer.Option) func() {
	made := must(rocketmq.NewPushConsumer(append(consumerOptions(group), options...)...))
	check(made.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, heard))
	check(made.Start())
	return func() { made.Shutdown() }
}

func next(received chan *primitive.MessageExt) *primitive.MessageExt {
	select {
	case one := <-received:
		return one
	case <-time.After(wait):
		panic(fmt.Sprint("no message within ", wait))
	}
}

func message(topic, text string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(text))
}

func body(one *primitive.MessageExt) string {
	return string(one.Body)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// same compares by text, so that numbers of all types are alike.
func same(expected, found any, what string) {
	if fmt.Sprint(expected) != fmt.Sprint(found) {
		panic(fmt.Sprint(what, ": expected ", expected, ", found ", found))
	}
}
