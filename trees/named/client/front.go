package client

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/named/client/cache"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// front is where reads and mutations pass. It remembers what was read, and learns of changes by
// named's feed, of which there is one for all programs of the realm on this machine, as long as
// somebody reads.
//
// A read comes to it first: what is remembered is the answer, or named is asked for all files along
// the path at once (ask). Of a mutation it hears before the caller does, so that nobody here reads
// what was before. A read that must be current (sigma.WithSync), or be checked by the server for
// its fence, passes it by, and what it tells may not be followed by something older (saw).
//
// A File that was made from what is remembered is bound to a session only when something is sent by
// it.
type front struct {
	realm   *Realm
	cache   *cache.Cache // nil = nothing is remembered
	start   time.Time
	idle    time.Duration // after which without reads everything is forgotten and the feed ends
	used    atomic.Int64  // nanoseconds after start: when somebody read last, about
	without atomic.Uint64 // number of the newest attachment whose server tells no changes
	hurry   chan struct{} // holds a token when the feed is to be asked at once

	mu      sync.Mutex
	running atomic.Bool // there is a feed; changes under mu
	closed  bool        // mu
	ctx     context.Context
	cancel  context.CancelFunc
	feeding sync.WaitGroup // Add with mu held and not closed
}

const (
	// feedLease is for how long what is remembered may be used after the feed was asked for what
	// had changed: the most by which a machine that is cut off is behind.
	feedLease = time.Second
	// feedWait is how long a poll of the feed waits for changes. Several polls may fail within a
	// lease.
	feedWait = 250 * time.Millisecond
	// feedIdle is front.idle, except in tests.
	feedIdle = 2 * time.Second
	// feedPause is the pause after a poll that failed.
	feedPause = 20 * time.Millisecond
	// feedAway is the same while named has not answered for the lease.
	feedAway = 200 * time.Millisecond
	// usedGrain is how exactly used is kept.
	usedGrain = int64(100 * time.Millisecond)

	// What one realm remembers at most: files and names, and of these the small.
	realmBytes = 16 << 20
	dataMax    = 32 << 10
	listMax    = 4096 // that fit into one answer are fewer
)

func newFront(r *Realm, budget *cache.Budget) *front {
	f := &front{realm: r, start: time.Now(), idle: feedIdle, hurry: make(chan struct{}, 1)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	if budget != nil {
		f.cache = cache.New(cache.Config{Bytes: realmBytes, DataMax: dataMax, ListMax: listMax, Lease: feedLease,
			Budget: budget})
	}
	return f
}

// close ends the feed. The session must have been closed, or be about to.
func (r *front) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.feeding.Wait()
	if r.cache != nil {
		r.cache.Clear()
	}
}

// direct reports whether a read of ctx must be answered by named.
func (r *front) direct(ctx context.Context) bool {
	return r.cache == nil || sigma.IsSync(ctx) || sigma.FenceOf(ctx).Name != ""
}

// touch notes that somebody reads.
func (r *front) touch(now time.Time) {
	at := int64(now.Sub(r.start))
	if at-r.used.Load() > usedGrain {
		r.used.Store(at)
	}
	if !r.running.Load() {
		r.feed()
	}
}

// feed starts the feed.
func (r *front) feed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.running.Load() {
		return
	}
	r.running.Store(true)
	r.feeding.Go(r.follow)
}

// follow polls the feed until nobody has read for a while.
func (r *front) follow() {
	ctx, cancel := context.WithCancel(r.ctx)
	var second sync.WaitGroup
	second.Go(func() { // asks while a poll waits
		for {
			select {
			case <-ctx.Done():
				return
			case <-r.hurry:
				r.poll(ctx, 0)
			}
		}
	})
	for !r.over() {
		wait := feedWait
		if number, _ := r.cache.Position(); number == 0 {
			wait = 0
		}
		if r.poll(ctx, wait) {
			continue
		}
		pause := feedPause
		// Readers may all be content with what is remembered.
		if _, stale := r.cache.Staleness(time.Now()); stale {
			pause = feedAway
			if _, err := r.realm.attached(ctx); sigma.KindOf(err) == sigma.KindNotFound && err != nil {
				break // the realm is gone
			}
		}
		retry.Pause(ctx, pause)
	}
	cancel()
	second.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cache.Clear()
	r.running.Store(false)
}

// over says that the feed is to end. While named does not answer, what is remembered stays for
// those who would rather read that than nothing.
func (r *front) over() bool {
	now := time.Now()
	_, stale := r.cache.Staleness(now)
	return r.ctx.Err() != nil || !stale && now.Sub(r.start)-time.Duration(r.used.Load()) > r.idle
}

// poll asks the feed once. It is false if there was no answer.
func (r *front) poll(ctx context.Context, wait time.Duration) bool {
	at := r.realm.current.Load()
	if at == nil || !at.live() {
		return false // the next read for which what is remembered is not enough sees to it
	}
	p := sigmap.NamesPoll{Wait: uint32(wait.Milliseconds())}
	p.Number, p.Since = r.cache.Position()
	asked := time.Now()
	answer, ok, err := call(ctx, r, at, sigmap.CallFeed, p)
	if !ok || err != nil {
		return false
	}
	r.cache.Apply(asked, &answer)
	return true
}

// call asks a realm's root. It is false if the server has no such method.
func call[Q, R any](ctx context.Context, r *front, at *attachment, m sigmap.Method[Q, R], q Q) (answer R, ok bool,
	err error) {
	if at.number <= r.without.Load() {
		return answer, false, nil
	}
	root, ok := at.Root.(sigma.Caller)
	if ok {
		if answer, err = m.Ask(ctx, root, q); err == nil || sigma.KindOf(err) != sigma.KindUnsupported {
			return answer, true, err
		}
	}
	r.without.Store(at.number)
	return answer, false, nil
}

// found is what names lead to: the first file and those that were reached.
type found struct {
	nodes []*cache.Node
	why   sigma.Kind // KindOther = all were reached
}

func (x *found) last() *cache.Node { return x.nodes[len(x.nodes)-1] }

// look finds files from what is remembered, or asks. ok is false if this cannot be found out so,
// and the plain requests must be made. room is for the nodes.
func (f *File) look(ctx context.Context, names []string, want cache.Want, room []*cache.Node) (x found, ok bool,
	err error) {
	r := f.realm.front
	if r.direct(ctx) || f.id == 0 || len(names) > sigmap.WalkMax {
		return found{}, false, nil
	}
	if f.closed.Load() {
		return found{}, false, sigma.Errorf("client.File", sigma.KindInvalid, "the handle is closed")
	}
	if err := ctx.Err(); err != nil {
		return found{}, false, sigma.Wrap("names.look", "", err)
	}
	now := time.Now()
	r.touch(now)
	if x.nodes, x.why, ok = r.cache.Look(now, f.id, names, want, room); !ok {
		err = r.askOrRecall(ctx, func(ctx context.Context) (err error) {
			x, ok, err = f.ask(ctx, names)
			return err
		}, func(now time.Time) bool {
			x.nodes, x.why, ok = r.cache.Look(now, f.id, names, want|cache.WantOld, nil)
			return ok
		})
	}
	if ok && f.owner {
		x.passed(names)
	}
	return x, ok, err
}

// askOrRecall asks named, or, for a read that may be old (sigma.WithStale), looks at what is
// remembered: at once if the feed is silent; when that comes to be so while named is asked, too.
func (r *front) askOrRecall(ctx context.Context, ask func(context.Context) error,
	recall func(now time.Time) bool) error {
	old := sigma.AgeOf(ctx)
	if old == nil {
		return ask(ctx)
	}
	remembered := func() bool {
		now := time.Now()
		age, stale := r.cache.Staleness(now)
		if stale = stale && recall(now); stale {
			old.Note(age)
		}
		return stale
	}
	if remembered() {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, feedLease)
	err := ask(soon)
	cancel()
	if kind := sigma.KindOf(err); err == nil || ctx.Err() != nil || soon.Err() == nil &&
		kind != sigma.KindUnavailable && kind != sigma.KindLost {
		return err
	}
	if remembered() {
		return nil
	}
	return ask(ctx)
}

// passed ends what was found at the first directory on the way that its owner may not pass.
func (x *found) passed(names []string) {
	for i, n := range x.nodes[:min(len(x.nodes), len(names))] {
		if n.Stat.ID.Kind == sigma.KindDir && n.Stat.Perm&uint32(treeserver.MayPass) == 0 {
			x.nodes, x.why = x.nodes[:i+1], sigma.KindPermission
			return
		}
	}
}

// ask is look that asks named.
func (f *File) ask(ctx context.Context, names []string) (x found, ok bool, err error) {
	r := f.realm.front
	fetch := r.cache.Begin()
	defer fetch.End()
	q := sigmap.NamesLook{From: f.id, Names: names, Max: dataMax}
	var got sigmap.NamesFound
	err = f.realm.root.Load().read(ctx, func(ctx context.Context, b *binding) (err error) {
		got, ok, err = call(ctx, r, b.at, sigmap.CallLook, q)
		return err
	})
	switch {
	case err != nil || !ok:
		return found{}, false, err
	case got.Why == sigma.KindStale:
		return found{}, false, stale()
	case len(got.Nodes) == 0 || len(got.Nodes) > len(names)+1 ||
		len(got.Nodes) <= len(names) == (got.Why == sigma.KindOther):
		return found{}, false, sigma.Errorf("names.look", sigma.KindOther, "the name service's answer makes no sense")
	}
	fetch.Enter(time.Now(), names, &got)
	x.why = got.Why
	for i := range got.Nodes {
		x.nodes = append(x.nodes, &cache.Node{NamesNode: got.Nodes[i]})
	}
	x.last().HasData, x.last().Data = got.HasData, got.Data
	return x, true, nil
}

func stale() error {
	return &sigma.Error{Op: "client.File", Kind: sigma.KindStale, Msg: "the file was removed"}
}

// failure is the error of a walk that did not reach all names.
func (x *found) failure(op string, names []string) error {
	switch {
	case x.why == sigma.KindOther:
		return nil
	case x.why == sigma.KindNotDir:
		return sigma.PathError(op, x.why, x.last().Stat.Name)
	case x.why == sigma.KindPermission:
		return treeserver.MayPass.Check(op, x.last().Stat.Name, x.last().Stat.Perm)
	}
	return sigma.PathError(op, x.why, names[len(x.nodes)-1])
}

// saw is called before something is passed on that tells a file's version and did not come from
// what is remembered, or an error that tells that something is not there, or that a mode forbids
// it.
func (r *front) saw(v sigma.Version, err error) {
	switch {
	case r.cache == nil || err == nil && v == 0:
	case err == nil:
		r.cache.Require(time.Now(), v)
	case sigma.KindOf(err) == sigma.KindNotFound, sigma.KindOf(err) == sigma.KindStale,
		sigma.KindOf(err) == sigma.KindVersion, sigma.KindOf(err) == sigma.KindPermission:
		r.doubt()
	}
}

// doubt lets nothing be answered from what is remembered until the feed has told all until now.
func (r *front) doubt() {
	if !r.running.Load() {
		return // and nothing is remembered
	}
	r.cache.Doubt(time.Now())
	select {
	case r.hurry <- struct{}{}:
	default:
	}
}

// change is one mutation.
type change struct {
	op      string // create, mkdir, symlink, put, write, truncate, setstat, remove, rename, lease, revoke
	dir     uint64 // in which a name was concerned; of put: where the walk began
	names   []string
	id      uint64        // of the file itself; 0 = not known
	version sigma.Version // it has then, if that was told
	newDir  uint64        // of a rename
	newName string
	waits   bool // it may wait for a name to be free
	err     error
}

// changed hears of each mutation that was answered, before its caller does. Whatever the answer is,
// it tells something newer than what is remembered.
func (r *front) changed(c change) {
	if r.cache == nil {
		return
	}
	var ids []uint64
	if c.id != 0 {
		ids = []uint64{c.id}
	}
	switch c.op {
	case "write", "truncate", "setstat":
		r.cache.Forget(ids, nil)
	case "create", "mkdir", "symlink", "remove":
		r.cache.Forget(ids, []cache.Place{{Dir: c.dir, Name: c.names[0]}})
	case "rename":
		r.cache.Forget(ids, []cache.Place{{Dir: c.dir, Name: c.names[0]}, {Dir: c.newDir, Name: c.newName}})
	case "put":
		if n := len(c.names) - 1; n >= 0 {
			if dir, ok := r.cache.Dir(c.dir, c.names[:n]); ok {
				r.cache.Forget(ids, []cache.Place{{Dir: dir, Name: c.names[n]}})
				return
			}
		}
		r.cache.Forget(ids, nil)
		if c.err != nil || c.version == 0 {
			r.doubt()
			return
		}
		r.cache.Require(time.Now(), c.version)
	case "lease":
	default: // a revoked lease takes files with it
		r.doubt()
	}
}

// ready says whether a realm's root can be given without a session: some reads, at least, are
// answered from what is remembered.
func (r *front) ready(ctx context.Context) bool {
	if r.cache == nil {
		return false
	}
	now := time.Now()
	_, stale := r.cache.Staleness(now)
	return r.cache.Fresh(now) || stale && sigma.AgeOf(ctx) != nil
}

// roomNodes is for how many files on the way there is room on the stack.
const roomNodes = 12

// get answers a Get from what was found, to the realm's owner or the provider. known is false if
// that is not enough.
func (x *found) get(owner bool, names []string, offset uint64, count int) (g sigma.GetResult, stop *sigma.Stopped,
	known bool, err error) {
	const op = "client.Get"
	n := x.last()
	switch {
	case n.IsLink() && n.HasData:
		return g, &sigma.Stopped{Walked: len(x.nodes) - 1, Kind: n.Stat.ID.Kind, Target: string(n.Data)}, true, nil
	case n.IsLink():
		return g, nil, false, nil
	case x.why != sigma.KindOther:
		return g, nil, true, x.failure(op, names)
	case n.Stat.ID.Kind == sigma.KindDir:
		return g, nil, true, sigma.PathError(op, sigma.KindIsDir, n.Stat.Name)
	case owner && n.Stat.Perm&uint32(treeserver.MayRead) == 0:
		return g, nil, true, treeserver.MayRead.Check(op, n.Stat.Name, n.Stat.Perm)
	case !n.HasData:
		return g, nil, false, nil
	}
	g = sigma.GetResult{ID: n.Stat.ID, Size: uint64(len(n.Data))}
	if offset < uint64(len(n.Data)) {
		g.Data = bytes.Clone(n.Data[offset:min(uint64(len(n.Data)), offset+uint64(count))])
	}
	return g, nil, true, nil
}

// listing returns a directory's entries, from the start or at least those after cookie; rest says
// that there are more than these. ok is false as of look.
func (f *File) listing(ctx context.Context, cookie uint64, most int) (l *cache.Listing, rest, ok bool, err error) {
	r := f.realm.front
	if r.direct(ctx) || f.id == 0 {
		return nil, false, false, nil
	}
	if f.closed.Load() {
		return nil, false, false, sigma.Errorf("client.File", sigma.KindInvalid, "the handle is closed")
	}
	if err := ctx.Err(); err != nil {
		return nil, false, false, sigma.Wrap("client.ReadDir", "", err)
	}
	now := time.Now()
	r.touch(now)
	if l, ok = r.cache.List(now, f.id, 0); !ok {
		err = r.askOrRecall(ctx, func(ctx context.Context) (err error) {
			l, rest, ok, err = f.askList(ctx, cookie, most)
			return err
		}, func(now time.Time) bool {
			l, ok = r.cache.List(now, f.id, cache.WantOld)
			return ok
		})
	}
	return l, rest, ok, err
}

// askList is listing that asks named.
func (f *File) askList(ctx context.Context, cookie uint64, most int) (l *cache.Listing, rest, ok bool, err error) {
	r := f.realm.front
	q := sigmap.NamesLookDir{Dir: f.id, Cookie: cookie, Max: uint32(min(most, listMax))}
	if cookie == 0 {
		q.Max = listMax
	}
	fetch := r.cache.Begin()
	defer fetch.End()
	var got sigmap.NamesListing
	err = f.realm.root.Load().read(ctx, func(ctx context.Context, b *binding) (err error) {
		got, ok, err = call(ctx, r, b.at, sigmap.CallLookDir, q)
		return err
	})
	if err != nil || !ok {
		return nil, false, false, err
	}
	if cookie == 0 && !got.More {
		fetch.EnterList(time.Now(), []sigmap.NamesListing{got})
	}
	newest := got.Dir.Stat.ID.Version
	for i := range got.Entries {
		newest = max(newest, got.Entries[i].ID.Version)
	}
	r.saw(newest, nil)
	return &cache.Listing{Entries: got.Entries}, got.More, true, nil
}
