package sdk

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// voter is a program in a realm whose names are in memory; cut off, its leases are not renewed.
type voter struct {
	elector
	mu  sync.Mutex
	cut bool // mu
}

type cuttable struct {
	sigma.File
	sigma.Leaser
	v *voter
}

func (c cuttable) Renew(ctx context.Context, id sigma.LeaseID) error {
	if err := c.v.isCut(); err != nil {
		return err
	}
	return c.Leaser.Renew(ctx, id)
}

func (c cuttable) Lease(ctx context.Context, ttl time.Duration) (sigma.LeaseID, error) {
	if err := c.v.isCut(); err != nil {
		return 0, err
	}
	return c.Leaser.Lease(ctx, ttl)
}

func (v *voter) isCut() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cut {
		return sigma.Errorf("test", sigma.KindUnavailable, "cut off")
	}
	return nil
}

func (v *voter) setCut(cut bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cut = cut
}

func newVoter(t *testing.T, tree sigma.Tree) *voter {
	t.Helper()
	root, err := tree.Attach(t.Context(), sigma.Principal{}, "")
	if err != nil {
		t.Fatal(err)
	}
	v := &voter{}
	v.elector = elector{tree: resolve.New(resolve.Config{Root: root}), root: cuttable{root, root.(sigma.Leaser), v}}
	return v
}

// won is how a campaign ended.
type won struct {
	*Leadership
	who *voter
	err error
}

func (v *voter) start(ctx context.Context, e Election, out chan<- won) {
	go func() {
		l, err := v.campaign(ctx, e)
		out <- won{l, v, err}
	}()
	synctest.Wait()
}

func none(t *testing.T, out <-chan won) {
	t.Helper()
	synctest.Wait()
	if len(out) > 0 {
		t.Fatalf("somebody was elected: %+v", <-out)
	}
}

func isLost(l *Leadership) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

// TestCampaign: leaders follow each other by epochs in the order of their coming, after one has
// resigned, and after one was cut off, who knows it before; who gives up is not elected, and the
// deposed can change nothing until it is elected again.
func TestCampaign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tree := t.Context(), memfs.New(memfs.Config{})
		defer tree.Close()
		a, b, c := newVoter(t, tree), newVoter(t, tree), newVoter(t, tree)
		if err := a.tree.Mkdir(ctx, "/svc", 0o777); err != nil {
			t.Fatal(err)
		}
		e := Election{Path: "/svc/leader", Data: []byte("me"), TTL: 3 * time.Second, Fenced: []string{"/svc"}}
		out := make(chan won, 10)
		var leaders []won
		elected := func(who *voter, epoch sigma.Epoch) *Leadership {
			t.Helper()
			synctest.Wait()
			select {
			case w := <-out:
				if w.who != who || w.err != nil ||
					w.Fence() != (sigma.Fence{Name: "/svc/leader.epoch", Epoch: epoch}) || isLost(w.Leadership) {
					t.Fatalf("elected is %+v, %v", w, w.err)
				}
				leaders = append(leaders, w)
				return w.Leadership
			default:
				t.Fatal("nobody is elected")
				return nil
			}
		}
		write := func(v *voter) error {
			_, err := v.tree.Put(ctx, "/svc/state", nil, sigma.PutOptions{})
			return err
		}
		a.start(ctx, e, out)
		first := elected(a, 1)
		gone, giveUp := context.WithCancel(ctx)
		newVoter(t, tree).start(gone, e, out)
		b.start(ctx, e, out)
		c.start(ctx, e, out)
		<-time.After(time.Minute)
		none(t, out)
		giveUp()
		if w := <-out; sigma.KindOf(w.err) != sigma.KindCanceled {
			t.Errorf("who gave up: %+v", w)
		}
		if err := write(a); err != nil {
			t.Error(err)
		}
		if err := first.Resign(ctx); err != nil || !isLost(first) {
			t.Errorf("Resign: %v", err)
		}
		second := elected(b, 2)
		b.setCut(true)
		<-time.After(3 * time.Second)
		if !isLost(second) {
			t.Error("a leader that was cut off was not told in time")
		}
		third := elected(c, 3)
		if err := write(c); err != nil {
			t.Error(err)
		}
		for _, old := range []*voter{a, b} {
			if err := write(old); sigma.KindOf(err) != sigma.KindStale {
				t.Errorf("a deposed leader wrote: %v", err)
			}
		}
		b.setCut(false)
		b.start(ctx, e, out)
		none(t, out)
		if err := errors.Join(second.Resign(ctx), third.Resign(ctx), first.Resign(ctx)); err != nil {
			t.Error(err)
		}
		fourth := elected(b, 4)
		if err := write(b); err != nil {
			t.Error(err)
		}
		if err := fourth.Resign(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestCampaignSucceeds: who succeeds a leader of its name that has died leads at once and before
// others who wait, and stays when the lease of the dead ends; of another name it waits, and it
// takes no file that is another's by then.
func TestCampaignSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tree := t.Context(), memfs.New(memfs.Config{})
		defer tree.Close()
		first, next, other, last := newVoter(t, tree), newVoter(t, tree), newVoter(t, tree), newVoter(t, tree)
		one := Election{Path: "/leader", Data: []byte("m1"), TTL: 3 * time.Second, Succeeds: true}
		two := one
		two.Data = []byte("m2")
		out := make(chan won, 10)
		elected := func(v *voter, epoch sigma.Epoch) *Leadership {
			t.Helper()
			synctest.Wait()
			select {
			case w := <-out:
				if w.err != nil || w.who != v || w.Fence().Epoch != epoch {
					t.Fatalf("elected is %+v, %v", w, w.err)
				}
				return w.Leadership
			default:
				t.Fatal("nobody is elected")
				return nil
			}
		}
		first.start(ctx, one, out) // nobody is there to be succeeded
		dead := elected(first, 1)
		other.start(ctx, two, out)
		none(t, out)
		first.setCut(true)
		next.start(ctx, one, out)
		leads := elected(next, 2)
		<-time.After(time.Minute)
		none(t, out)
		if isLost(leads) || !isLost(dead) {
			t.Error("the lease of the dead decides about its successor")
		}
		if err := errors.Join(dead.Resign(ctx), leads.Resign(ctx)); err != nil {
			t.Error(err)
		}
		theirs := elected(other, 3)
		last.start(ctx, one, out)
		none(t, out)
		if err := theirs.Resign(ctx); err != nil {
			t.Error(err)
		}
		if err := elected(last, 4).Resign(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestCampaignAgain: a candidate whose lease ends while it waits stands again, as soon as leases
// are granted again.
func TestCampaignAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tree := t.Context(), memfs.New(memfs.Config{})
		defer tree.Close()
		a, b := newVoter(t, tree), newVoter(t, tree)
		e, out := Election{Path: "/leader"}, make(chan won, 10)
		a.start(ctx, e, out)
		first := <-out
		b.start(ctx, e, out)
		b.setCut(true)
		<-time.After(time.Minute)
		b.setCut(false)
		<-time.After(time.Minute)
		none(t, out)
		if err := first.Resign(ctx); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		second := <-out
		if second.err != nil || second.Fence().Epoch != 2 {
			t.Fatalf("%+v", second)
		}
		if err := second.Resign(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestCampaignFails: what is wrong with an election is said at once, and leaves nothing behind.
func TestCampaignFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tree := t.Context(), memfs.New(memfs.Config{})
		defer tree.Close()
		v := newVoter(t, tree)
		if _, err := v.tree.Put(ctx, "/leader.epoch", []byte("no epoch"), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		for path, kind := range map[string]sigma.Kind{"/missing/leader": sigma.KindNotFound,
			"relative": sigma.KindInvalid, "/leader": sigma.KindInvalid} {
			if l, err := v.campaign(ctx, Election{Path: path}); sigma.KindOf(err) != kind {
				t.Errorf("%s: %+v, %v", path, l, err)
			}
		}
		if _, err := v.tree.Stat(ctx, "/leader"); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("a candidate that failed left its file: %v", err)
		}
	})
}

// endedLease grants a first lease that has ended by the time it is used, as that of a candidate
// that stood still.
type endedLease struct {
	sigma.File
	sigma.Leaser
	granted int
}

func (l *endedLease) Lease(ctx context.Context, ttl time.Duration) (sigma.LeaseID, error) {
	id, err := l.Leaser.Lease(ctx, ttl)
	if l.granted++; l.granted == 1 && err == nil {
		err = l.Leaser.Revoke(ctx, id)
	}
	return id, err
}

// Goal: a candidate whose lease has ended before it knows stands again.
func TestLeaseEndedUnseen(t *testing.T) {
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	v := newVoter(t, tree)
	root := &endedLease{v.root, v.root.(sigma.Leaser), 0}
	l, err := elector{v.tree, root, nil}.campaign(t.Context(), Election{Path: "/leader", TTL: 2 * time.Second})
	if err != nil || root.granted != 2 {
		t.Fatalf("after %d leases: %v", root.granted, err)
	}
	if err := l.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}
