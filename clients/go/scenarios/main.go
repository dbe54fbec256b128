// Runs clients/scenarios.json against the service at TIMERWHEEL_URL; prints a line for each scenario. A call may take
// TIMERWHEEL_TIMEOUT_MS.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"timerwheel"
)

type step struct {
	Do, Topic, Group, ID, Receipt, Key, Save, Reason, Error string
	Body                                                    *string
	JSON                                                    any
	Bodies                                                  []string
	Handled                                                 map[string]int
	Expect                                                  map[string]any
	Count                                                   *int
	Max, Concurrency, Until                                 int
	DelayMs                                                 *int64 `json:"delay_ms"`
	WaitMs                                                  int64  `json:"wait_ms"`
	LastsMs                                                 int64  `json:"lasts_ms"`
	BackoffMs                                               int64  `json:"backoff_ms"`
	FailOnce                                                string `json:"fail_once"`
	FailWith                                                string `json:"fail_with"`
	OnDuplicate                                             string `json:"on_duplicate"`
	AfterRecall                                             string `json:"after_recall"`
}

type scenario struct {
	Name  string
	Steps []step
}

func main() {
	service, err := timerwheel.New(os.Getenv("TIMERWHEEL_URL"))
	if err != nil {
		panic(err)
	}
	if ms, err := strconv.Atoi(os.Getenv("TIMERWHEEL_TIMEOUT_MS")); err == nil {
		service.Timeout = time.Duration(ms) * time.Millisecond
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	var file struct{ Scenarios []scenario }
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), "{p}", os.Args[2])), &file); err != nil {
		panic(err)
	}
	code := 0
	for _, one := range file.Scenarios {
		if err := run(service, one); err != nil {
			fmt.Printf("failed: %s: %v\n", one.Name, err)
			code = 1
			continue
		}
		fmt.Printf("ok: %s\n", one.Name)
	}
	os.Exit(code)
}

func run(service *timerwheel.Service, one scenario) error {
	saved := map[string]map[string]any{}
	for place, raw := range one.Steps {
		step := raw
		for _, field := range []*string{&step.ID, &step.Receipt} {
			*field = fmt.Sprint(named(*field, saved))
		}
		found, err := do(context.Background(), service, step)
		if step.Error != "" {
			if string(timerwheel.Code(err)) != step.Error {
				return fmt.Errorf("step %d: expected %s, got %v", place, step.Error, err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", place, err)
		}
		if step.Save != "" {
			saved[step.Save] = found
		}
		for name, wanted := range step.Expect {
			if text, ok := wanted.(string); ok {
				wanted = named(text, saved)
			}
			if !reflect.DeepEqual(found[name], wanted) {
				return fmt.Errorf("step %d: %s is %v, not %v", place, name, found[name], wanted)
			}
		}
	}
	return nil
}

// named returns the value that a text such as $a.id names, or the text.
func named(text string, saved map[string]map[string]any) any {
	if name, field, ok := strings.Cut(strings.TrimPrefix(text, "$"), "."); ok && strings.HasPrefix(text, "$") {
		return saved[name][field]
	}
	return text
}

func fields(value any) map[string]any {
	text, _ := json.Marshal(value)
	found := map[string]any{}
	_ = json.Unmarshal(text, &found)
	return found
}

func message(step step) timerwheel.NewMessage {
	made := timerwheel.NewMessage{Topic: step.Topic, Body: step.Body, Json: step.JSON, DelayMs: step.DelayMs}
	if step.Key != "" {
		made.DedupKey = &step.Key
	}
	if step.OnDuplicate != "" {
		chosen := timerwheel.NewMessageOnDuplicate(step.OnDuplicate)
		made.OnDuplicate = &chosen
	}
	if step.AfterRecall != "" {
		made.AfterRecall = &step.AfterRecall
	}
	return made
}

func do(ctx context.Context, service *timerwheel.Service, step step) (map[string]any, error) {
	group := service.Group(step.Topic, step.Group)
	switch step.Do {
	case "send":
		found, err := service.Send(ctx, message(step))
		return fields(found), err
	case "send_many":
		var many []timerwheel.NewMessage
		for _, body := range step.Bodies {
			one := message(step)
			one.Body = &body
			many = append(many, one)
		}
		found, err := service.SendMany(ctx, many)
		if err == nil && len(found) != *step.Count {
			err = fmt.Errorf("%d receipts", len(found))
		}
		return nil, err
	case "get":
		found, err := service.Get(ctx, step.ID)
		return fields(found), err
	case "recall":
		found, err := service.Recall(ctx, step.ID)
		return fields(found), err
	case "reschedule":
		found, err := service.Reschedule(ctx, step.ID, time.Duration(*step.DelayMs)*time.Millisecond)
		return fields(found), err
	case "receive":
		return receive(ctx, group, step)
	case "ack":
		return nil, group.Ack(ctx, step.Receipt)
	case "extend":
		return nil, group.Extend(ctx, step.Receipt, time.Duration(step.LastsMs)*time.Millisecond)
	case "nack":
		delay := time.Duration(*step.DelayMs) * time.Millisecond
		return nil, group.Nack(ctx, step.Receipt, step.Reason, &delay)
	case "put_group":
		return nil, putGroup(ctx, service, step)
	case "consume":
		return nil, consume(ctx, group, step)
	}
	return nil, fmt.Errorf("no such step: %s", step.Do)
}

func receive(ctx context.Context, group *timerwheel.ConsumerGroup, step step) (map[string]any, error) {
	found, err := group.Receive(ctx, step.Max, time.Duration(step.WaitMs)*time.Millisecond)
	if err != nil {
		return nil, err
	}
	if len(found) != *step.Count {
		return nil, fmt.Errorf("received %d messages, not %d", len(found), *step.Count)
	}
	for place, body := range step.Bodies {
		if found[place].Text() != body {
			return nil, fmt.Errorf("message %d is %q, not %q", place, found[place].Text(), body)
		}
	}
	if step.JSON != nil {
		var value any
		if err := found[0].Decode(&value); err != nil || !reflect.DeepEqual(value, step.JSON) {
			return nil, fmt.Errorf("the body is %v, %v", value, err)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	return fields(found[0]), nil
}

func putGroup(ctx context.Context, service *timerwheel.Service, step step) error {
	text := fmt.Sprintf(`{"backoff": {"type": "exponential", "initial_ms": %d, "max_ms": %[1]d}}`, step.BackoffMs)
	response, err := service.API.PutGroupWithBodyWithResponse(
		ctx, step.Topic, step.Group, nil, "application/json", strings.NewReader(text),
	)
	if err == nil && response.StatusCode() >= 300 {
		err = errors.New(string(response.Body))
	}
	return err
}

func consume(ctx context.Context, group *timerwheel.ConsumerGroup, step step) error {
	working, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	handled, total, lock := map[string]int{}, 0, sync.Mutex{}
	err := group.Consume(working, step.Concurrency, func(_ context.Context, message timerwheel.Held) error {
		lock.Lock()
		defer lock.Unlock()
		body := message.Text()
		handled[body]++
		if total++; total == step.Until {
			done()
		}
		if body == step.FailOnce && handled[body] == 1 {
			return errors.New(cmp.Or(step.FailWith, "not at first"))
		}
		return nil
	})
	if err == nil && !reflect.DeepEqual(handled, step.Handled) {
		err = fmt.Errorf("handled %v", handled)
	}
	return err
}
