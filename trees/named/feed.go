package named

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Machines remember what they read of a realm's names (trees/named/client/cache). So that they
// learn of changes, a leader tells them by its feed: the last changes in order, from which each
// machine takes those that it has not seen yet by a call that waits for some (long poll). No change
// waits for a machine. A machine that has not been answered for its lease uses nothing that it
// remembers, and an answer speaks for the time at which it was asked for, when this leader had its
// authority; so nobody but a machine that is cut off needs a clock.
//
// A realm for which nobody polls keeps no changes. A feed that cannot tell what has changed since
// says so, and all is forgotten: after another leader has begun, after more changes than feedMax,
// after a pause.

const (
	// feedMax bounds the changes that are kept of one realm: a second of many, since a machine that
	// is slower has to forget more than it would save.
	feedMax = 8192
	// feedIdle is after how long without a poll the changes are not kept any more.
	feedIdle = 5 * time.Second
	// feedWaitMax bounds how long a poll waits. A machine that wants to know that it is not cut off
	// asks for less.
	feedWaitMax = 10 * time.Second
	// feedRoom is how many bytes of changes one answer may have.
	feedRoom = sigmap.DataMax - 256
)

// feed is a leader's part of it. All of it is guarded by leader.mu.
type feed struct {
	number  uint64 // tells this leader's feed from those of others; never changes
	kept    bool
	since   sigma.Version // changes after this one are there, if kept
	changes []sigmap.NamesChange
	wake    chan struct{} // closed when changes come; nil = nobody waits
	waiting int           // polls
	polled  time.Time
	idle    *time.Timer // not nil while kept
}

func newFeed() feed { return feed{number: rand.Uint64() | 1} }

// changesOf lists what a step changes, for those who know how it was before. It is called before
// the step is merged.
func changesOf(t *tree, s *step) []sigmap.NamesChange {
	at := sigma.Version(s.rec.seq)
	var out []sigmap.NamesChange
	for id, n := range s.nodes {
		old := t.node(id)
		switch {
		case old == nil: // it is new: its directory and its name tell
		case n == nil:
			out = append(out, sigmap.NamesChange{Kind: sigmap.NodeGone, At: at,
				Node: sigmap.NamesNode{Parent: old.parent, Stat: sigma.Stat{ID: sigma.FileID{Path: id}}}})
		default:
			out = append(out, sigmap.NamesChange{Kind: sigmap.NodeChanged, At: at, Node: n.described()})
		}
	}
	for e, id := range s.names {
		out = append(out, sigmap.NamesChange{Kind: sigmap.EntryChanged, At: at, Node: sigmap.NamesNode{Parent: e.dir,
			Stat: sigma.Stat{Name: e.name, ID: sigma.FileID{Path: id}}}})
	}
	return out
}

func (n *node) described() sigmap.NamesNode {
	return sigmap.NamesNode{Parent: n.parent, Stat: n.stat()}
}

// addLocked keeps changes and wakes who waits for them.
func (f *feed) addLocked(changes []sigmap.NamesChange) {
	if !f.kept || len(changes) == 0 {
		return
	}
	f.changes = append(f.changes, changes...)
	if over := len(f.changes) - feedMax; over > 0 {
		for f.since = f.changes[over-1].At; over < len(f.changes) && f.changes[over].At == f.since; over++ {
		}
		f.changes = f.changes[over:] // append copies them once for each quarter of feedMax
	}
	if f.wake != nil {
		close(f.wake)
		f.wake = nil
	}
}

// keepLocked begins to keep changes, or goes on.
func (l *leader) keepLocked() {
	f := &l.feed
	f.polled = time.Now()
	if f.kept {
		return
	}
	f.kept, f.since = true, sigma.Version(l.tree.rec.seq)
	f.idle = time.AfterFunc(feedIdle, l.dropFeed)
}

// dropFeed ends the keeping when nobody has polled for long.
func (l *leader) dropFeed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &l.feed
	left := feedIdle - time.Since(f.polled)
	if f.waiting > 0 {
		left = feedIdle
	}
	if left > 0 && !isClosed(l.done) {
		f.idle.Reset(left)
		return
	}
	f.kept, f.changes, f.idle = false, nil, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// poll answers what changed since. errEnded tells to ask the next leader.
func (l *leader) poll(ctx context.Context, p sigmap.NamesPoll) (sigmap.NamesFeed, error) {
	wait := time.NewTimer(min(time.Duration(p.Wait)*time.Millisecond, feedWaitMax))
	defer wait.Stop()
	for late := p.Wait == 0; ; {
		l.mu.Lock()
		l.keepLocked()
		f := &l.feed
		now := sigma.Version(l.tree.rec.seq)
		answer := sigmap.NamesFeed{Number: f.number, At: now}
		if p.Number != f.number || p.Since < f.since || p.Since > now {
			answer.Reset = true
		} else if len(f.changes) > 0 && f.changes[len(f.changes)-1].At > p.Since {
			f.fill(&answer, p.Since)
		} else if !late {
			if f.wake == nil {
				f.wake = make(chan struct{})
			}
			wake := f.wake
			f.waiting++
			l.mu.Unlock()
			var err error
			select {
			case <-wake:
			case <-wait.C:
				late = true
			case <-ctx.Done():
				err = sigma.Wrap("named.poll", "", ctx.Err())
			case <-l.done:
				err = errEnded
			}
			l.mu.Lock()
			f.waiting--
			l.mu.Unlock()
			if err != nil {
				return sigmap.NamesFeed{}, err
			}
			continue
		}
		l.mu.Unlock()
		return answer, nil
	}
}

// fill puts as many changes as fit into an answer, of each version all or none.
func (f *feed) fill(answer *sigmap.NamesFeed, since sigma.Version) {
	first := len(f.changes)
	for first > 0 && f.changes[first-1].At > since {
		first--
	}
	room, whole := feedRoom, first
	for i := first; i < len(f.changes); i++ {
		n := &f.changes[i].Node.Stat
		room -= sigmap.NamesChangeSize + len(n.Name) + len(n.Owner)
		if room < 0 {
			answer.At = since
			if whole > first {
				answer.At = f.changes[whole-1].At
			}
			answer.Reset = whole == first // one version alone is too much
			break
		}
		if i+1 == len(f.changes) || f.changes[i+1].At != f.changes[i].At {
			whole = i + 1
		}
	}
	if answer.Reset {
		answer.At = f.changes[len(f.changes)-1].At
		return
	}
	answer.Changes = append([]sigmap.NamesChange(nil), f.changes[first:whole]...)
}

// Call implements sigma.Caller at a realm's root, for machines.
func (f *file) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	const op = "named.Call"
	session.CloseFiles(files)
	if !f.root || !f.system {
		return nil, nil, &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "this file answers no calls"}
	}
	m, ok := rootMethods[method]
	if !ok {
		return nil, nil, sigma.Errorf(op, sigma.KindUnsupported, "a realm's root has no method %.50q", method)
	}
	return m.Call(f, ctx, payload)
}

// rootMethods are those of a realm's root.
var rootMethods = sigmap.Table(sigmap.On(sigmap.CallFeed, (*file).callFeed),
	sigmap.On(sigmap.CallLook, (*file).callLook), sigmap.On(sigmap.CallLookDir, (*file).callLookDir),
	sigmap.On(sigmap.CallUse, (*file).callUse),
	sigmap.Do(sigmap.CallForget, func(f *file, ctx context.Context, clients []uint64) error {
		return f.mutate(ctx, forgetOp{clients[:min(len(clients), sigmap.ForgetMax)]}).err
	}))

func (f *file) callFeed(ctx context.Context, p sigmap.NamesPoll) (answer sigmap.NamesFeed, err error) {
	if err := f.checkClosed(); err != nil {
		return answer, err
	}
	for {
		l, err := f.slot.leader(ctx)
		if err != nil {
			return answer, err
		}
		if answer, err = l.poll(ctx, p); !errors.Is(err, errEnded) {
			return answer, err
		}
	}
}

// lookMaxData bounds the content that a look answers with, so that the files along the longest path
// fit beside it.
const lookMaxData = 32 << 10

func (f *file) callLook(ctx context.Context, q sigmap.NamesLook) (found sigmap.NamesFound, err error) {
	var last *node
	err = f.readLed(ctx, func(l *leader, t *tree) error {
		found.Number, found.At = l.feed.number, sigma.Version(t.rec.seq)
		if last = t.node(q.From); last == nil {
			found.Why = sigma.KindStale
			return nil
		}
		reached, why := walkFrom(t, q.From, q.Names)
		if why != nil {
			if found.Why = sigma.KindOf(why); found.Why != sigma.KindNotFound && found.Why != sigma.KindNotDir {
				return why
			}
		}
		found.Nodes = append(found.Nodes, last.described())
		for _, n := range reached {
			found.Nodes = append(found.Nodes, n.described())
			last = n
		}
		return nil
	})
	if err == nil && last != nil && last.kind != sigma.KindDir && len(last.data) <= int(min(q.Max, lookMaxData)) {
		found.HasData, found.Data = true, last.data
	}
	return found, err
}

func (f *file) callLookDir(ctx context.Context, q sigmap.NamesLookDir) (got sigmap.NamesListing, err error) {
	const op = "named.ReadDir"
	if q.Max == 0 {
		return got, sigma.Errorf(op, sigma.KindInvalid, "a listing of no entries")
	}
	err = f.readLed(ctx, func(l *leader, t *tree) error {
		got.Number, got.At = l.feed.number, sigma.Version(t.rec.seq)
		c := t.cells[q.Dir]
		switch {
		case c == nil:
			return staleError(op)
		case c.dir == nil:
			return sigma.PathError(op, sigma.KindNotDir, c.n.name)
		}
		got.Dir = c.n.described()
		got.Entries, got.Next, got.More = t.list(c.dir, q.Cookie, int(min(q.Max, listMax)))
		return nil
	})
	if err != nil {
		return got, err
	}
	room := feedRoom - 1024 // of the directory's own description
	for i, e := range got.Entries {
		if room -= sigmap.ListEntrySize + len(e.Name); room < 0 {
			got.Entries, got.More, got.Next = got.Entries[:i], true, got.Entries[i-1].Next
			break
		}
	}
	return got, nil
}

// readLed is read that also tells whose tree it is.
func (f *file) readLed(ctx context.Context, do func(l *leader, t *tree) error) error {
	if err := f.checkClosed(); err != nil {
		return err
	}
	l, err := f.slot.leader(ctx)
	if err != nil {
		return err
	}
	return l.read(func(t *tree) error { return do(l, t) })
}
