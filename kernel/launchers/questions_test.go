package launchers

import (
	"context"
	"testing"

	"sigmaos.dev/wire/launch"
)

// Goal: the launcher is asked nothing for somebody who has given up: whether the answer would come
// first must not decide what is told.
func TestNoQuestionForNobody(t *testing.T) {
	late, cancel := context.WithCancel(t.Context())
	cancel()
	q := newQuestions(1)
	for range 20 { // a select between what is ready takes either
		_, err := q.put(late, question{'m', 1}, func(uint64) error {
			t.Error("the launcher is asked")
			q.answer(question{'m', 1}, launch.Metered{ID: 1})
			return nil
		}, nil)
		if err == nil {
			t.Error("the question is answered")
		}
	}
}
