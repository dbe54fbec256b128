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
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// SendTries is how often Send and SendMany try a send that got no answer, or was told to come back later.
	SendTries = 6
	// firstPause is the pause after the first try; it doubles each time, up to longestPause.
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	// longestWait is how long a send waits at most for the time that the service names; for a later one it fails.
	longestWait = 15 * time.Second
	// callTimeout is how long a call may take if Service.Timeout does not say.
	callTimeout = 30 * time.Second
	// answerBytesShown is how much of what is no answer an error shows.
	answerBytesShown = 500
)

// Error is a refusal by the service. Match on Code, which does not change.
type Error struct {
	Problem
	// RetryAfter is how long the service asks to wait before another try; 0 if it does not say.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Detail) }

// AnswerError is what came in place of an answer of the service, such as the page of a proxy.
type AnswerError struct {
	Status int
	// Body is its beginning.
	Body string
}

func (e *AnswerError) Error() string {
	return fmt.Sprintf("HTTP %d without a problem: %q", e.Status, e.Body)
}

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
	// Timeout is how long a call may take, besides what Receive waits; 0 is 30 s. It is not for calls of API.
	Timeout time.Duration
}

// New returns a client of the service at a URL. Options are those of the generated client; see also WithToken.
func New(address string, options ...ClientOption) (*Service, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		return nil, fmt.Errorf("%q is not the address of a service; write one like http://127.0.0.1:8686", address)
	}
	api, err := NewClientWithResponses(address, options...)
	if err != nil {
		return nil, err
	}
	return &Service{API: api}, nil
}

// limited returns the context of one call, which may wait for so long.
func (s *Service) limited(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	limit := s.Timeout
	if limit <= 0 {
		limit = callTimeout
	}
	return context.WithTimeout(ctx, limit+wait)
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
// stored once; a message without a key gets a random one for that. One with OnDuplicate or AfterRecall gets none.
// What replaces, or has no key, is sent again only if it was certainly not stored.
func (s *Service) Send(ctx context.Context, message NewMessage) (Accepted, error) {
	keyed := withKey(message)
	return send[Accepted](ctx, s, keyed, isStoredOnce(keyed))
}

// SendMany stores messages as one unit: all or none. It tries again as Send does.
func (s *Service) SendMany(ctx context.Context, messages []NewMessage) ([]Accepted, error) {
	keyed, storedOnce := make([]NewMessage, len(messages)), true
	for place, message := range messages {
		keyed[place] = withKey(message)
		storedOnce = storedOnce && isStoredOnce(keyed[place])
	}
	return send[[]Accepted](ctx, s, keyed, storedOnce)
}

// send stores what the service stores once, however often it is sent, or what it does not.
func send[T any](ctx context.Context, s *Service, messages any, storedOnce bool) (T, error) {
	var none T
	content, err := json.Marshal(messages)
	if err != nil {
		return none, err
	}
	mayRepeat := mayPass
	if !storedOnce {
		mayRepeat = wasNotStored
	}
	return retried(ctx, mayRepeat, func() (T, error) {
		ctx, done := s.limited(ctx, 0)
		defer done()
		response, err := s.API.SendMessagesWithBodyWithResponse(ctx, nil, "application/json", bytes.NewReader(content))
		if err != nil {
			return none, err
		}
		return answer[T](response.Body, response.HTTPResponse)
	})
}

// Get returns a message and its state.
func (s *Service) Get(ctx context.Context, id string) (Message, error) {
	ctx, done := s.limited(ctx, 0)
	defer done()
	response, err := s.API.GetMessageWithResponse(ctx, id)
	if err != nil {
		return Message{}, err
	}
	return answer[Message](response.Body, response.HTTPResponse)
}

// Recall ends a scheduled message: it will not be delivered.
func (s *Service) Recall(ctx context.Context, id string) (Message, error) {
	ctx, done := s.limited(ctx, 0)
	defer done()
	response, err := s.API.RecallMessageWithResponse(ctx, id, nil)
	if err != nil {
		return Message{}, err
	}
	return answer[Message](response.Body, response.HTTPResponse)
}

// Reschedule changes the due time of a scheduled message, counted from now; the id stays.
func (s *Service) Reschedule(ctx context.Context, id string, delay time.Duration) (Accepted, error) {
	ms := int64(math.Ceil(float64(delay) / float64(time.Millisecond)))
	ctx, done := s.limited(ctx, 0)
	defer done()
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
	if !hasKey(message) && message.OnDuplicate == nil && message.AfterRecall == nil {
		random := make([]byte, 16)
		if _, err := rand.Read(random); err != nil {
			panic(err) // the system has no randomness
		}
		key := hex.EncodeToString(random)
		message.DedupKey = &key
	}
	return message
}

func hasKey(message NewMessage) bool {
	if message.Properties != nil {
		if _, has := (*message.Properties)["DEDUP_KEY"]; has {
			return true
		}
	}
	return message.DedupKey != nil
}

// isStoredOnce is whether the service stores a message once, however often it is sent.
func isStoredOnce(message NewMessage) bool {
	return hasKey(message) && (message.OnDuplicate == nil || *message.OnDuplicate != Replace)
}

// retried calls until there is an answer, or tries are used up. An error that another try may not repeat, or not
// change, is returned at once.
func retried[T any](ctx context.Context, mayRepeat func(error) bool, call func() (T, error)) (T, error) {
	pause := firstPause
	for try := 1; ; try++ {
		found, err := call()
		if err == nil || try == SendTries || ctx.Err() != nil || asked(err) > longestWait || !mayRepeat(err) {
			return found, err
		}
		wait := max(asked(err), pause/2+time.Duration(mathrand.Int63n(int64(pause))))
		if !slept(ctx, wait) {
			return found, err
		}
		pause = min(2*pause, longestPause)
	}
}

// slept is false if the context ended first.
func slept(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// mayPass is whether the same call may succeed later.
func mayPass(err error) bool { return isLimited(err) || mayPassUnlimited(err) }

func mayPassUnlimited(err error) bool {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Status == http.StatusServiceUnavailable || refused.Code == "outcome_unknown"
	}
	var other *AnswerError
	if errors.As(err, &other) { // of a proxy that got no answer
		switch other.Status {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	var untrusted *tls.CertificateVerificationError
	var malformed *json.SyntaxError
	var unexpected *json.UnmarshalTypeError
	return !errors.As(err, &untrusted) && !errors.As(err, &malformed) && !errors.As(err, &unexpected) // no answer
}

// wasNotStored is whether a send was certainly not stored, and may be stored later.
func wasNotStored(err error) bool {
	var refused *Error
	if errors.As(err, &refused) {
		return (isLimited(err) || refused.Status == http.StatusServiceUnavailable) && refused.RetryAfter > 0
	}
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial"
}

// isLimited is whether the token made too many calls: this one had no effect.
func isLimited(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests && refused.RetryAfter > 0
}

// asked is how long the service asks to wait.
func asked(err error) time.Duration {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.RetryAfter
	}
	return 0
}

func answer[T any](body []byte, response *http.Response) (T, error) {
	var found T
	other := &AnswerError{Status: response.StatusCode, Body: string(body[:min(len(body), answerBytesShown)])}
	if response.StatusCode < http.StatusBadRequest {
		if err := json.Unmarshal(body, &found); err != nil {
			return found, other
		}
		return found, nil
	}
	refused := &Error{}
	if err := json.Unmarshal(body, &refused.Problem); err != nil || refused.Code == "" {
		return found, other
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		refused.RetryAfter = time.Duration(min(seconds, math.MaxInt32)) * time.Second
	}
	return found, refused
}
