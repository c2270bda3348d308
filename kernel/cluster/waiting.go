package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// What a booting machine finds out about the control machines without which it cannot begin a life:
// who takes connections. Nothing is decided by it but whom to ask first and what is said to who
// boots.

const (
	answerWithin = time.Second     // that a control machine has to take a connection
	refusedMax   = 1000            // bytes of a refusal that are told
	electWithin  = 5 * time.Second // that control machines that answer have before it is said that one is to lead
)

// unheard gives those of the control machines, without this one, that take no connection now. It
// asks all at once, and takes a second at most.
func (x *Cluster) unheard(ctx context.Context, control []identity.Member) []identity.Member {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	answers := make([]bool, len(control))
	var all sync.WaitGroup
	for i, m := range control {
		if m.Machine == x.cfg.Self.Machine || x.cfg.Links.Connect == nil {
			answers[i] = true
			continue
		}
		all.Go(func() {
			if c, err := x.cfg.Links.Connect(ctx, m.Address); err == nil {
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

// majority is how many of n control machines can decide. Where the names are kept elsewhere, each
// can.
func (x *Cluster) majority(n int) int {
	if x.cfg.External {
		return 1
	}
	return n/2 + 1
}

// tellWaits says what the boot waits for, when that changes, until ctx ends.
func (x *Cluster) tellWaits(ctx context.Context) {
	if x.cfg.Waits == nil {
		return
	}
	var answered time.Time // since when enough of them do
	said := ""
	for {
		control := x.own.keeper.get().Control
		silent := x.unheard(ctx, control)
		need := x.majority(len(control))
		if len(control)-len(silent) < need {
			answered = time.Time{}
		} else if answered.IsZero() {
			answered = time.Now()
		}
		what, missing := "", false
		if x.own.between.Load() { // else it is no member that keeps this machine
			what = x.refusedWords()
		}
		if what == "" {
			late := x.own.between.Load() && !answered.IsZero() && time.Since(answered) > electWithin
			what, missing = waitsFor(control, silent, need, late)
		}
		if what != said && ctx.Err() == nil {
			x.cfg.Waits(what, missing)
			said = what
		}
		if !retry.Pause(ctx, answerWithin) {
			return
		}
	}
}

// noteRefusal remembers what was said to this machine when it asked to be registered, if that does
// not become better by itself; nil = it was registered. Who cannot be asked now has refused
// nothing.
func (x *Cluster) noteRefusal(err error) {
	if err == nil || forGood(err) {
		x.own.refusal.Store(&err)
	}
}

// ShutOut is the error for whoever needs the system while it refuses to register this machine, as
// after the machine was removed; nil if it does not.
func (x *Cluster) ShutOut() error {
	why := x.own.refusal.Load()
	if !x.own.between.Load() || why == nil || *why == nil {
		return nil
	}
	return &sigma.Error{Op: "kernel.live", Kind: sigma.KindPermission,
		Msg: fmt.Sprintf("machine %s is no member of its system any more: %.200s", x.cfg.Self.Machine, (*why).Error()),
		Hint: "if it was removed, it can join with a fresh data directory: sigma token create at another machine, " +
			"then sigma join here"}
}

// refusedWords says that this machine is not let in, if so; else "".
func (x *Cluster) refusedWords() string {
	why := x.own.refusal.Load()
	if why == nil || *why == nil {
		return ""
	}
	words := fmt.Sprintf("a registration, which is refused: %v", *why)
	if hint := sigma.HintOf(*why); hint != "" {
		words += "; " + hint
	}
	return strings.ReplaceAll(words[:min(len(words), refusedMax)], "\n", " ")
}

// forGood says whether who was refused with err is refused the next time, too.
func forGood(err error) bool {
	kind := sigma.KindOf(err)
	return kind == sigma.KindPermission || kind == sigma.KindInvalid || kind == sigma.KindExists
}

// waitsFor says what there is to wait for while silent ones of the control machines do not answer,
// of which need are needed, and whether it is these; "" if nothing is known. late says that those
// who answer should have agreed long since.
func waitsFor(control, silent []identity.Member, need int, late bool) (what string, missing bool) {
	answer := len(control) - len(silent)
	if answer >= need {
		if !late || len(control) < 2 {
			return "", false
		}
		return fmt.Sprintf("one of the %d control machines that answer to lead", answer), false
	}
	silent = slices.SortedFunc(slices.Values(silent), func(a, b identity.Member) int {
		return strings.Compare(string(a.Machine), string(b.Machine))
	})
	words := make([]string, len(silent))
	for i, m := range silent {
		words[i] = fmt.Sprintf("%s at %s", m.Machine, m.Address)
	}
	answers := "does not answer"
	if len(words) > 1 {
		answers = "do not answer"
	}
	return fmt.Sprintf("%d more of the %d control machines, without which nothing can be decided: %s %s", need-answer,
		len(control), strings.Join(words, ", "), answers), true
}
