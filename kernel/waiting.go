package kernel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/identity"
)

// What a booting machine finds out about the control machines without which it cannot begin a life: who takes connections. Nothing is decided by it but whom to ask first and what is said to who boots.

const (
	answerWithin = time.Second     // that a control machine has to take a connection
	electWithin  = 5 * time.Second // that control machines that answer have before it is said that one is to lead
)

// unheard gives those of the control machines, without this one, that take no connection now. It asks all at once, and takes a second at most.
func (k *Kernel) unheard(ctx context.Context, control []identity.Member) []identity.Member {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	answers := make([]bool, len(control))
	var all sync.WaitGroup
	for i, m := range control {
		if m.Machine == k.cfg.Machine || k.cfg.Connect == nil {
			answers[i] = true
			continue
		}
		all.Go(func() {
			if c, err := k.cfg.Connect(ctx, m.Address); err == nil {
				c.Close()
				answers[i] = true
			}
		})
	}
	all.Wait()
	var out []identity.Member
	for i, m := range control {
		if !answers[i] {
			out = append(out, m)
		}
	}
	return out
}

// majority is how many of n control machines can decide. Where the names are kept elsewhere, each can.
func (k *Kernel) majority(n int) int {
	if k.cfg.Etcd != nil {
		return 1
	}
	return n/2 + 1
}

// tellWaits says what the boot waits for, when that changes, until ctx ends.
func (k *Kernel) tellWaits(ctx context.Context) {
	if k.cfg.Waits == nil {
		return
	}
	began, said := time.Now(), ""
	for {
		control := k.own.keeper.get().Control
		what := waitsFor(control, k.unheard(ctx, control), k.majority(len(control)), time.Since(began) > electWithin)
		if what != said && what != "" && ctx.Err() == nil {
			k.cfg.Waits(what)
			said = what
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(answerWithin):
		}
	}
}

// waitsFor says what there is to wait for while silent ones of the control machines do not answer, of which need are needed; "" if nothing is known. late says that those who answer should have agreed long since.
func waitsFor(control, silent []identity.Member, need int, late bool) string {
	answer := len(control) - len(silent)
	if answer >= need {
		if !late || len(control) < 2 {
			return ""
		}
		return fmt.Sprintf("one of the %d control machines that answer to lead", answer)
	}
	silent = slices.SortedFunc(slices.Values(silent), func(a, b identity.Member) int { return strings.Compare(string(a.Machine), string(b.Machine)) })
	words := make([]string, len(silent))
	for i, m := range silent {
		words[i] = fmt.Sprintf("%s at %s", m.Machine, m.Address)
	}
	answers := "does not answer"
	if len(words) > 1 {
		answers = "do not answer"
	}
	return fmt.Sprintf("%d more of the %d control machines, without which nothing can be decided: %s %s", need-answer, len(control), strings.Join(words, ", "), answers)
}
