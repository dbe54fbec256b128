package timerwheel

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"
)

// reasonCharactersMax is how much of a reason the service keeps.
const reasonCharactersMax = 500

// ConsumerGroup is a consumer group of a topic. It may be used by many goroutines.
type ConsumerGroup struct {
	service     *Service
	topic, name string
}

// Receive leases messages. It waits up to `wait` for the first one.
func (g *ConsumerGroup) Receive(ctx context.Context, most int, wait time.Duration) ([]Held, error) {
	max, waitMs, create := int64(most), wait.Milliseconds(), true
	wanted := ReceiveJSONRequestBody{Max: &max, WaitMs: &waitMs, Create: &create}
	response, err := g.service.API.ReceiveWithResponse(ctx, g.topic, g.name, wanted)
	if err != nil {
		return nil, err
	}
	found, err := answer[Received](response.Body, response.HTTPResponse)
	return found.Messages, err
}

// Ack acknowledges messages by their receipts: the group never gets them again.
func (g *ConsumerGroup) Ack(ctx context.Context, receipts ...string) error {
	response, err := g.service.API.AcknowledgeWithResponse(ctx, g.topic, g.name, AcknowledgeJSONRequestBody{Receipts: receipts})
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
	response, err := g.service.API.GiveBackWithResponse(ctx, g.topic, g.name, body)
	if err != nil {
		return err
	}
	return settled(answer[SettledAll](response.Body, response.HTTPResponse))
}

// Extend makes a lease last so much longer, from now.
func (g *ConsumerGroup) Extend(ctx context.Context, receipt string, lasts time.Duration) error {
	body := ExtendJSONRequestBody{Receipts: []string{receipt}, InvisibleMs: lasts.Milliseconds()}
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
// It waits for running handlers before it returns; their context is not the one that ended.
func (g *ConsumerGroup) Consume(ctx context.Context, concurrency int, handle Handler) error {
	const wait, lease = 20 * time.Second, 30 * time.Second
	slots := make(chan struct{}, concurrency)
	var running sync.WaitGroup
	defer running.Wait()
	pause := firstPause
	for {
		select {
		case <-ctx.Done():
			return nil
		case slots <- struct{}{}:
		}
		free := 1
		for free < concurrency {
			select {
			case slots <- struct{}{}:
				free++
				continue
			default:
			}
			break
		}
		found, err := g.Receive(ctx, free, wait)
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
			select { // the service starts again
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, longestPause)
			continue
		}
		pause = firstPause
		for _, message := range found {
			running.Add(1)
			go func() {
				defer func() { <-slots; running.Done() }()
				g.work(context.WithoutCancel(ctx), message, lease, handle)
			}()
		}
	}
}

func (g *ConsumerGroup) work(ctx context.Context, message Held, lease time.Duration, handle Handler) {
	holding, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for {
			select {
			case <-holding.Done():
				return
			case <-time.After(lease / 3):
				_ = g.Extend(holding, message.Receipt, lease) // if it fails, the message is delivered again
			}
		}
	}()
	err := handle(ctx, message)
	stop()
	// An outage here costs a repeated delivery, which every worker of a group has to bear.
	if err == nil {
		_, _ = retried(ctx, func() (struct{}, error) { return struct{}{}, g.Ack(ctx, message.Receipt) })
		return
	}
	reason := []rune(strings.ToValidUTF8(err.Error(), "?"))
	_ = g.Nack(ctx, message.Receipt, string(reason[:min(len(reason), reasonCharactersMax)]), nil)
}
