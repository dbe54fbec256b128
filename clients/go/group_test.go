package timerwheel

import (
	"context"
	"net/http"
	"testing"
	"time"
)

func limited(wait time.Duration) error {
	return &Error{Problem: Problem{Status: http.StatusTooManyRequests, Code: "rate_limited"}, RetryAfter: wait}
}

func TestNobodyWaitsForALimitedRateBeyondTheEndOfTheLease(t *testing.T) {
	calls := 0
	message := &held{ends: time.Now().Add(20 * time.Millisecond), stopping: context.Background()}
	err := message.patiently(func() error { calls++; return limited(time.Hour) })
	if !isLimited(err) || calls != 1 {
		t.Fatalf("%d calls, and then %v", calls, err)
	}
}

func TestALeaseThatIsExtendedIsSettledWhenTheRateAllowsIt(t *testing.T) {
	calls := 0
	message := &held{ends: time.Now().Add(100 * time.Millisecond), stopping: context.Background()}
	err := message.patiently(func() error {
		if calls++; calls == 1 {
			message.endsAt(time.Now().Add(time.Hour))
			return limited(200 * time.Millisecond)
		}
		return nil
	})
	if err != nil || calls != 2 {
		t.Fatalf("%d calls, and then %v", calls, err)
	}
}

func TestAWorkerThatStopsDoesNotWaitForALimitedRateForLong(t *testing.T) {
	for _, before := range []bool{true, false} {
		stopping, stop := context.WithCancel(context.Background())
		message := &held{ends: time.Now().Add(time.Hour), stopping: stopping}
		calls := 0
		if before {
			stop()
		} else {
			time.AfterFunc(20*time.Millisecond, stop)
		}
		err := message.patiently(func() error { calls++; return limited(settleWait + time.Minute) })
		if !isLimited(err) || calls != 1 {
			t.Fatalf("%d calls, and then %v", calls, err)
		}
		stop()
	}
}

func TestAWorkerThatStopsWaitsForSoLongInAll(t *testing.T) {
	stopping, stop := context.WithCancel(context.Background())
	stop()
	message, budget := &held{ends: time.Now().Add(time.Hour), stopping: stopping}, 25*time.Millisecond
	tries := 0
	for message.waited(10*time.Millisecond, &budget) {
		tries++
	}
	if tries != 2 {
		t.Fatalf("%d tries", tries)
	}
}

func TestATimeBeyondWhatADurationCanHoldIsALongOne(t *testing.T) {
	response := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{}}
	response.Header.Set("Retry-After", "10000000000")
	_, err := answer[Received]([]byte(`{"code": "rate_limited", "status": 429}`), response)
	if !isLimited(err) || asked(err) < 24*time.Hour {
		t.Fatalf("asked to wait for %s", asked(err))
	}
}
