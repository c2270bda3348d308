//go:build system

package attack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/test/attack/forge"
)

// attackByMessages sends what no client sends, in a realm of its own. After each the daemons must
// be well and answer their neighbours. The controls run the same program against a server without
// the checks (naive_test.go).
func attackByMessages(ctx context.Context, t *testing.T, s *score, p programs, plain *arena) {
	realm := plain.fuzzed(ctx, t)
	send := func(args ...string) (string, sigma.Status) {
		ids, err := realm.Spawn(ctx, sigma.Descriptor{Program: plain.forge, Args: args})
		if err != nil {
			t.Fatal(err)
		}
		st, err := realm.WaitExit(ctx, ids[0])
		if err != nil {
			t.Fatal(err)
		}
		b, _, err := realm.Get(ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b), st
	}
	for _, x := range []struct {
		attempt, asset string
		kinds          []string
	}{
		{"send bytes that are no message", "sigmad", []string{"noise", "zeros", "empty"}},
		{"send messages with false sizes", "sigmad", []string{"size", "short", "huge"}},
		{"send messages of no known type", "sigmad", []string{"types", "replies"}},
		{"send messages before a session has begun", "sigmad", []string{"unready"}},
		{"send 100,000 requests and read no reply", "memory of the machine", []string{"requests"}},
		{"send requests that wait for ever", "memory of the machine", []string{"waits", "calls"}},
		{"begin a session without end", "memory of the machine", []string{"versions"}},
	} {
		for _, kind := range x.kinds {
			a := act{kind, x.attempt, x.asset}
			out, _ := send("raw", kind)
			err := plain.well(ctx)
			s.tried(t, a, err != nil, fmt.Sprint("a neighbour notices: ", err))
			s.control(t, a, harmsNaive(t, p, "raw", kind), "a naive server takes it: "+out)
		}
	}
	fuzz(ctx, t, s, p, plain, send)
	for _, name := range []string{"attach", "fids"} {
		out, _ := send("raw", name)
		results := lines(t, out)
		if len(results) == 0 {
			t.Errorf("no results of %s", name)
		}
		for _, l := range results {
			if l.result != "control" {
				s.tried(t, l.act, l.result != "blocked", l.detail)
				s.control(t, l.act, harmsNaive(t, p, "raw", name), "a naive server refuses it")
			}
		}
	}
	hoard(ctx, t, s, plain)
}

// fuzzSeeds are sent, one session of sigmad and 50 of the object store each.
const fuzzSeeds = 20

// fuzz sends messages that are right but for one thing, to sigmad and to the object store.
func fuzz(ctx context.Context, t *testing.T, s *score, p programs, plain *arena,
	send func(...string) (string, sigma.Status)) {
	for seed := range fuzzSeeds {
		send("raw", "fuzz", fmt.Sprint(seed))
	}
	a := act{"fuzz", "send spoilt messages to sigmad", "sigmad"}
	err := plain.well(ctx)
	s.tried(t, a, err != nil, fmt.Sprint("a neighbour notices: ", err))
	s.control(t, a, harmsNaive(t, p, "raw", "fuzz", "0"), "a naive server takes it")
	a = act{"fuzz of s3d", "send spoilt messages to the object store", "s3d"}
	out, _ := send("store", "0")
	err = plain.well(ctx)
	s.tried(t, a, err != nil, fmt.Sprint("a neighbour notices: ", err, out))
	s.control(t, a, harmsNaive(t, p, "raw", "fuzz", "0-0"), "a naive server takes it")
}

// fuzzed is a realm for those who speak no sigmaP, so that what they may destroy is their own.
func (a *arena) fuzzed(ctx context.Context, t *testing.T) *sdk.Client {
	const name sigma.RealmID = "fuzzed"
	if err := a.own.Realms().Create(ctx, name); err != nil {
		t.Fatal(err)
	}
	c := a.Connect(ctx, t, name)
	a.Install(ctx, t, c, a.programs.forger)
	a.hold(ctx, t, c)
	return c
}

// well asks the daemons for the neighbours' files, and that they are the processes they were.
func (a *arena) well(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	for _, path := range []string{forge.Names, forge.UX + "/secret", forge.Object} {
		if _, _, err := a.other.Get(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

// hoard takes connections, files and calls without end. Its control is that two hoarders get some,
// and that both together get no more than one session may have.
func hoard(ctx context.Context, t *testing.T, s *score, plain *arena) {
	a := act{"hoard", "take connections, files and calls without end", "sigmad"}
	ids, err := plain.own.Spawn(ctx, slices.Repeat([]sigma.Descriptor{{Program: plain.forge, Args: []string{"hoard"}}},
		2)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		testenv.Eventually(t, "the hoarders have what they get", func() error {
			b, _, err := plain.own.Get(ctx, sigma.JoinPath("proc", string(id), "stdout"))
			if err == nil && len(b) == 0 {
				err = errors.New("not yet")
			}
			return err
		})
	}
	err = plain.well(ctx)
	s.tried(t, a, err != nil, fmt.Sprint("a neighbour notices: ", err))
	for _, id := range ids {
		if err := plain.own.Kill(ctx, id); err != nil {
			t.Error(err)
		}
		if _, err := plain.own.WaitExit(ctx, id); err != nil {
			t.Error(err)
		}
	}
}
