// Package retry is how everybody waits between attempts, and between looks at what cannot be
// watched. It promises that a pause ends with its context. It imports only the standard library,
// since every proc links it. Pauses that grow are loops of their callers, as in
//
//	for wait := least; ; wait = min(2*wait, most)
//
// A library for such loops (cenkalti/backoff) would be in every proc, and answers with the
// context's error where callers want that of the last attempt.
package retry

import (
	"context"
	"time"
)

// Pause waits for d, and reports whether ctx is still good.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
