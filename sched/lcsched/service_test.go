package lcsched

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// TestLongJobs: however long the labels of jobs are and however many procs hold reservations, each
// answer fits a message: all are granted, refused and shown, and none ends the session by which all
// jobs of the machine come.
func TestLongJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewService()
		defer s.Lead(false)
		s.Lead(true)
		f, err := s.Attach(t.Context(), sigma.Principal{System: true, Machine: "m1"}, "")
		if err != nil {
			t.Fatal(err)
		}
		root := sigmap.Via(func(ctx context.Context, method string, payload []byte) ([]byte, error) {
			reply, _, err := f.(sigma.Caller).Call(ctx, method, payload, nil)
			if len(reply) > sigmap.DataMax {
				t.Fatalf("%s: an answer of %d bytes", method, len(reply))
			}
			return reply, err
		})
		done := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		const many = 200
		for i := range many { // two calls would do; each has as much as it may
			held := []Held{{ID: sigma.ProcID(fmt.Sprint("h", i)), Realm: "r", Name: "h", CPU: 1, Memory: 1}}
			done(CallHeld.Tell(t.Context(), root, held))
		}
		labels := map[string]string{}
		var has, lacks []string
		for i := range sigma.WhereMax {
			name, value := fmt.Sprint(i), strings.Repeat("x", sigma.LabelMax-4)
			labels[name] = value
			has, lacks = append(has, name+"="+value), append(lacks, name+"=y"+value[1:])
		}
		a := Attendance{Incarnation: 1, CPU: 1000 * many, Memory: sigma.GiB, Labels: labels}
		go func() { CallAttend.Tell(t.Context(), root, a) }()
		synctest.Wait()
		if cpu, _ := s.core.Held("m1"); cpu != many {
			t.Errorf("%v is held of what was told", cpu)
		}
		for i := range many {
			jobs := []Job{job(fmt.Sprint("g", i), 1, 1, where(has...)), job(fmt.Sprint("n", i), 1, 1, where(lacks...)),
				job(fmt.Sprint("w", i), 1000*many-1, 1, where(has...))}
			done(CallEnqueue.Tell(t.Context(), root, jobs))
		}
		if ws, err := CallWaiting.Ask(t.Context(), root, sigmap.None{}); err != nil || len(ws) == 0 {
			t.Error("nothing is said to wait")
		}
		granted, refused := 0, 0
		for granted+refused < 2*many {
			x, err := CallNext.Ask(t.Context(), root, sigmap.None{})
			done(err)
			granted, refused = granted+len(x.Jobs), refused+len(x.Refused)
		}
		if granted != many || refused != many {
			t.Errorf("%d were granted, %d refused", granted, refused)
		}
	})
}
