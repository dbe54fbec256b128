// Package timerwheel is a client of a timerwheel service.
//
// api.gen.go has every call of the HTTP API, generated from the service's OpenAPI document. This file adds what a
// program wants besides: sends that are stored once although an answer was lost, errors with their code, and
// workers of a consumer group.
//
//	service, err := timerwheel.New("http://127.0.0.1:8686")
//	accepted, err := service.Send(ctx, timerwheel.Text("orders", "close order 17").In(30 * time.Minute))
package timerwheel

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand"
	"net/http"
	"strconv"
	"time"
)

const (
	// SendTries is how often Send and SendMany try a send that got no answer, or was told to come back later.
	SendTries = 6
	// firstPause is the pause after the first try; it doubles each time, up to longestPause.
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// Error is a refusal by the service. Match on Code, which does not change.
type Error struct {
	Problem
	// RetryAfter is how long the service asks to wait before another try; 0 if it does not say.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Detail) }

// Code returns the code of an error of the service, "" for another error.
func Code(err error) ProblemCode {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// Service is one service. It may be used by many goroutines.
type Service struct {
	// API has every call as it is, with an answer for each status.
	API ClientWithResponsesInterface
}

// New returns a client of the service at a URL. Options are those of the generated client; see also WithToken.
func New(url string, options ...ClientOption) (*Service, error) {
	api, err := NewClientWithResponses(url, options...)
	if err != nil {
		return nil, err
	}
	return &Service{API: api}, nil
}

// WithToken sends a token with each call.
func WithToken(token string) ClientOption {
	return WithRequestEditorFn(func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+token)
		return nil
	})
}

// Text returns a message with a text as its body. Set other fields as needed.
func Text(topic, body string) NewMessage { return NewMessage{Topic: topic, Body: &body} }

// Bytes returns a message with any bytes as its body.
func Bytes(topic string, body []byte) NewMessage { return NewMessage{Topic: topic, BodyBase64: &body} }

// JSON returns a message with a value as its body, as JSON.
func JSON(topic string, value any) NewMessage { return NewMessage{Topic: topic, Json: value} }

// In returns the message with a delay, rounded up to a millisecond.
func (m NewMessage) In(delay time.Duration) NewMessage {
	ms := int64(math.Ceil(float64(delay) / float64(time.Millisecond)))
	m.DelayMs = &ms
	return m
}

// At returns the message with a due time, rounded up to a millisecond.
func (m NewMessage) At(due time.Time) NewMessage {
	ms := due.Add(time.Millisecond - time.Nanosecond).UnixMilli()
	m.DeliverAtMs = &ms
	return m
}

// Send stores a message. If no answer comes, it sends again under the same deduplication key, so the message is
// stored once; a message without a key gets a random one for that.
func (s *Service) Send(ctx context.Context, message NewMessage) (Accepted, error) {
	keyed := withKey(message)
	return retried(ctx, func() (Accepted, error) {
		response, err := s.API.SendMessagesWithResponse(ctx, nil, keyed)
		if err != nil {
			return Accepted{}, err
		}
		return answer[Accepted](response.Body, response.HTTPResponse)
	})
}

// SendMany stores messages as one unit: all or none. It tries again as Send does.
func (s *Service) SendMany(ctx context.Context, messages []NewMessage) ([]Accepted, error) {
	keyed := make([]NewMessage, len(messages))
	for place, message := range messages {
		keyed[place] = withKey(message)
	}
	content, err := json.Marshal(keyed)
	if err != nil {
		return nil, err
	}
	return retried(ctx, func() ([]Accepted, error) {
		response, err := s.API.SendMessagesWithBodyWithResponse(ctx, nil, "application/json", bytes.NewReader(content))
		if err != nil {
			return nil, err
		}
		return answer[[]Accepted](response.Body, response.HTTPResponse)
	})
}

// Get returns a message and its state.
func (s *Service) Get(ctx context.Context, id string) (Message, error) {
	response, err := s.API.GetMessageWithResponse(ctx, id)
	if err != nil {
		return Message{}, err
	}
	return answer[Message](response.Body, response.HTTPResponse)
}

// Recall ends a scheduled message: it will not be delivered.
func (s *Service) Recall(ctx context.Context, id string) (Message, error) {
	response, err := s.API.RecallMessageWithResponse(ctx, id, nil)
	if err != nil {
		return Message{}, err
	}
	return answer[Message](response.Body, response.HTTPResponse)
}

// Reschedule changes the due time of a scheduled message, counted from now; the id stays.
func (s *Service) Reschedule(ctx context.Context, id string, delay time.Duration) (Accepted, error) {
	ms := int64(math.Ceil(float64(delay) / float64(time.Millisecond)))
	response, err := s.API.RescheduleMessageWithResponse(ctx, id, nil, RescheduleMessageJSONRequestBody{DelayMs: &ms})
	if err != nil {
		return Accepted{}, err
	}
	return answer[Accepted](response.Body, response.HTTPResponse)
}

// Group returns a consumer group of a topic. It calls nothing.
func (s *Service) Group(topic, name string) *ConsumerGroup {
	return &ConsumerGroup{service: s, topic: topic, name: name}
}

func withKey(message NewMessage) NewMessage {
	if message.DedupKey == nil {
		random := make([]byte, 16)
		if _, err := rand.Read(random); err != nil {
			panic(err) // the system has no randomness
		}
		key := hex.EncodeToString(random)
		message.DedupKey = &key
	}
	return message
}

// retried calls until there is an answer, or tries are used up. A refusal that another try cannot change is
// returned at once.
func retried[T any](ctx context.Context, call func() (T, error)) (T, error) {
	pause := firstPause
	for try := 1; ; try++ {
		found, err := call()
		if err == nil || try == SendTries || ctx.Err() != nil || !mayPass(err) {
			return found, err
		}
		wait := pause/2 + time.Duration(mathrand.Int63n(int64(pause)))
		var refused *Error
		if errors.As(err, &refused) && refused.RetryAfter > wait {
			wait = min(refused.RetryAfter, longestPause)
		}
		select {
		case <-ctx.Done():
			return found, err
		case <-time.After(wait):
		}
		pause = min(2*pause, longestPause)
	}
}

func mayPass(err error) bool {
	var refused *Error
	if !errors.As(err, &refused) {
		return true // no answer
	}
	return refused.Status == http.StatusServiceUnavailable || refused.Code == "outcome_unknown"
}

func answer[T any](body []byte, response *http.Response) (T, error) {
	var found T
	if response.StatusCode < http.StatusBadRequest {
		return found, json.Unmarshal(body, &found)
	}
	refused := &Error{}
	if err := json.Unmarshal(body, &refused.Problem); err != nil {
		return found, fmt.Errorf("HTTP %d without a problem: %q", response.StatusCode, body)
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		refused.RetryAfter = time.Duration(seconds) * time.Second
	}
	return found, refused
}
