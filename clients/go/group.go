package timerwheel

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// reasonCharactersMax is how much of a reason the service keeps.
	reasonCharactersMax = 500
	// receiveMax is how many messages one call leases at most.
	receiveMax = 1_000
	// settleWait is how long a worker that stops waits in all for a limited rate to settle a message.
	settleWait = 10 * time.Second
)

// ConsumerGroup is a consumer group of a topic. It may be used by many goroutines.
type ConsumerGroup struct {
	service     *Service
	topic, name string
}

// Receive leases messages for as long as the group says. It waits up to `wait` for the first one.
func (g *ConsumerGroup) Receive(ctx context.Context, most int, wait time.Duration) ([]Held, error) {
	return g.receive(ctx, most, wait, nil)
}

func (g *ConsumerGroup) receive(ctx context.Context, most int, wait time.Duration, lastsMs *int64) ([]Held, error) {
	ctx, done := g.service.limited(ctx, wait)
	defer done()
	max, waitMs, create := int64(most), wait.Milliseconds(), true
	wanted := ReceiveJSONRequestBody{Max: &max, WaitMs: &waitMs, Create: &create, InvisibleMs: lastsMs}
	response, err := g.service.API.ReceiveWithResponse(ctx, g.topic, g.name, wanted)
	if err != nil {
		return nil, err
	}
	found, err := answer[Received](response.Body, response.HTTPResponse)
	return found.Messages, err
}

// Ack acknowledges messages by their receipts: the group never gets them again.
func (g *ConsumerGroup) Ack(ctx context.Context, receipts ...string) error {
	ctx, done := g.service.limited(ctx, 0)
	defer done()
	body := AcknowledgeJSONRequestBody{Receipts: receipts}
	response, err := g.service.API.AcknowledgeWithResponse(ctx, g.topic, g.name, body)
	if err != nil {
		return err
	}
	return settled(answer[SettledAll](response.Body, response.HTTPResponse))
}

// Nack gives a message back: it is delivered again after a delay, or with nil after that of its attempt. The
// reason is kept.
func (g *ConsumerGroup) Nack(ctx context.Context, receipt, reason string, delay *time.Duration) error {
	body := GiveBackJSONRequestBody{Receipts: []string{receipt}, Reason: &reason}
	if delay != nil {
		ms := delay.Milliseconds()
		body.DelayMs = &ms
	}
	ctx, done := g.service.limited(ctx, 0)
	defer done()
	response, err := g.service.API.GiveBackWithResponse(ctx, g.topic, g.name, body)
	if err != nil {
		return err
	}
	return settled(answer[SettledAll](response.Body, response.HTTPResponse))
}

// Extend makes a lease last so much longer, from now.
func (g *ConsumerGroup) Extend(ctx context.Context, receipt string, lasts time.Duration) error {
	body := ExtendJSONRequestBody{Receipts: []string{receipt}, InvisibleMs: lasts.Milliseconds()}
	ctx, done := g.service.limited(ctx, 0)
	defer done()
	response, err := g.service.API.ExtendWithResponse(ctx, g.topic, g.name, body)
	if err != nil {
		return err
	}
	return settled(answer[SettledAll](response.Body, response.HTTPResponse))
}

// settled returns the first receipt's error, such as receipt_ended.
func settled(all SettledAll, err error) error {
	if err != nil {
		return err
	}
	for _, one := range all.Results {
		if !one.Ok && one.Code != nil {
			return &Error{Problem: Problem{Code: ProblemCode(*one.Code), Detail: "receipt " + one.Receipt}}
		}
	}
	return nil
}

// Text returns the body of a message as text; bytes that are not UTF-8 come as they are.
func (h Held) Text() string { return string(h.Content()) }

// Content returns the body of a message.
func (h Held) Content() []byte {
	switch {
	case h.Body != nil:
		return []byte(*h.Body)
	case h.BodyBase64 != nil:
		return *h.BodyBase64
	}
	return nil
}

// Decode reads the body of a message as JSON.
func (h Held) Decode(value any) error { return json.Unmarshal(h.Content(), value) }

// Handler works on one message. If it returns an error, the message is delivered again later.
type Handler func(ctx context.Context, message Held) error

// Consume runs a handler on each message of the group, up to `concurrency` at a time, until the context ends.
// It extends leases while handlers work, acknowledges what they finished, and gives back what they failed.
// A limited rate makes it wait as long as the service says, but to settle a message only until its lease has ended,
// and 10 s at most once the context has. It waits for running handlers before it returns; their context is not the one
// that ended.
func (g *ConsumerGroup) Consume(ctx context.Context, concurrency int, handle Handler) error {
	const wait, lease = 20 * time.Second, 30 * time.Second
	if concurrency < 1 {
		return fmt.Errorf("concurrency = %d: must be at least 1", concurrency)
	}
	leaseMs := lease.Milliseconds()
	slots := make(chan struct{}, concurrency)
	var running sync.WaitGroup
	defer running.Wait()
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	pause := firstPause
	for {
		select {
		case <-ctx.Done():
			return nil
		case slots <- struct{}{}:
		}
		free := 1
		for free < min(concurrency, receiveMax) {
			select {
			case slots <- struct{}{}:
				free++
				continue
			default:
			}
			break
		}
		found, err := g.receive(ctx, free, wait, &leaseMs)
		for range free - len(found) {
			<-slots
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if !mayPass(err) {
				return err
			}
			slept(ctx, max(pause, asked(err))) // the service starts again, or the rate is limited
			pause = min(2*pause, longestPause)
			continue
		}
		pause = firstPause
		for _, message := range found {
			running.Add(1)
			go func() {
				defer func() { <-slots; running.Done() }()
				taken := &held{Held: message, lasts: lease, ends: time.Now().Add(lease), stopping: stopping}
				g.work(context.WithoutCancel(ctx), taken, handle)
			}()
		}
	}
}

func (g *ConsumerGroup) work(ctx context.Context, message *held, handle Handler) {
	holding, stop := context.WithCancel(ctx)
	defer stop()
	go g.extend(holding, message)
	err := handle(ctx, message.Held)
	// An outage here costs a repeated delivery, which every worker of a group has to bear.
	if err == nil {
		_ = message.patiently(func() error {
			_, err := retried(ctx, mayPassUnlimited, func() (struct{}, error) {
				return struct{}{}, g.Ack(ctx, message.Receipt)
			})
			return err
		})
		return
	}
	reason := []rune(strings.ToValidUTF8(err.Error(), "?"))
	shown := string(reason[:min(len(reason), reasonCharactersMax)])
	_ = message.patiently(func() error { return g.Nack(ctx, message.Receipt, shown, nil) })
}

// extend makes a lease last until the context ends. If that fails for too long, the message is delivered again.
func (g *ConsumerGroup) extend(ctx context.Context, message *held) {
	pause := message.lasts / 3
	for slept(ctx, pause) {
		pause = message.lasts / 3
		begun := time.Now()
		err := g.Extend(ctx, message.Receipt, message.lasts)
		switch {
		case err == nil:
			message.endsAt(begun.Add(message.lasts))
		case Code(err) == "receipt_ended":
			message.endsAt(begun)
			return
		case isLimited(err):
			pause = min(pause, max(asked(err), firstPause))
		}
	}
}

// held is a message that a worker has, until its lease ends.
type held struct {
	Held
	lasts    time.Duration
	stopping context.Context
	lock     sync.Mutex
	ends     time.Time
}

func (h *held) endsAt(ends time.Time) {
	h.lock.Lock()
	defer h.lock.Unlock()
	h.ends = ends
}

func (h *held) left() time.Duration {
	h.lock.Lock()
	defer h.lock.Unlock()
	return time.Until(h.ends)
}

// patiently calls as soon as a limited rate allows. It gives up when the lease has ended, and once the worker stops, as
// soon as it would have to wait for more than settleWait in all.
func (h *held) patiently(call func() error) error {
	budget := settleWait
	for {
		err := call()
		if !isLimited(err) || !h.waited(max(asked(err), firstPause), &budget) {
			return err
		}
	}
}

// waited is whether the time has passed and it is worth to try again. A stop takes the rest of it from the budget.
func (h *held) waited(pause time.Duration, budget *time.Duration) bool {
	for until := time.Now().Add(pause); ; {
		rest, left := time.Until(until), h.left()
		switch {
		case rest <= 0:
			return true
		case left <= 0:
			return false
		case h.stopping.Err() == nil:
			slept(h.stopping, min(rest, left)) // the lease may be extended by then
		case rest > *budget:
			return false
		default:
			*budget -= min(rest, left)
			time.Sleep(min(rest, left))
		}
	}
}
