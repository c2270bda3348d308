package sdk

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

// A Dialer lists its directory at a dial, or has one goroutine follow it by a watch and keep what
// is there as a snapshot, which dials read. The watch says only when to list again. While the names
// do not answer the last snapshot goes on being used.

const (
	// watchIdle is how long after a dial another one finds the directory watched; two dials within
	// that time begin it.
	watchIdle = 5 * time.Second
	// watchTick is the time between looks at what a watch does not tell: an endpoint that was
	// replaced under its name, a link that leads elsewhere.
	watchTick = time.Second
	// watchAgain is how long names that do not answer are left alone.
	watchAgain = 100 * time.Millisecond
	// wantAgain is how long after a dial has asked for a member it asks again, if nobody has come
	// and who starts members has taken the question away: it may have died since.
	wantAgain = 3 * time.Second
	// watchMost is for one look; one that takes longer is begun anew.
	watchMost = 10 * time.Second
)

// followed gives what the watch saw last; nil if there is none.
func (d *Dialer) followed() *snapshot {
	s := d.now.Load()
	if s == nil {
		return nil
	}
	if !d.used.Load() {
		d.used.Store(true)
	}
	if len(s.members)+len(s.broken) == 0 {
		return nil // somebody may have come just now
	}
	return s
}

// hurry has the watch list again now.
func (d *Dialer) hurry() { wake(d.wake) }

// look lists for a dial, and has the directory followed if it was dialled before just now. Without
// a member it waits for one, if the policy says so.
func (d *Dialer) look(ctx context.Context) (*snapshot, error) {
	s, err := d.list(ctx)
	if err != nil {
		return nil, err
	}
	if s.policy.Wanted && len(s.members) == 0 {
		return d.await(ctx, s)
	}
	d.mu.Lock()
	again := d.isDir && time.Since(d.last) < watchIdle
	d.last = time.Now()
	d.mu.Unlock()
	if again {
		d.follow(s)
	}
	return s, nil
}

// list looks at the path.
func (d *Dialer) list(ctx context.Context) (*snapshot, error) {
	d.mu.Lock()
	isDir := d.isDir
	d.mu.Unlock()
	if !isDir {
		m, isDir, err := d.single(ctx)
		switch {
		case err != nil:
			return nil, err
		case m.err != nil && !isDir:
			return &snapshot{broken: []*member{m}}, nil
		case !isDir:
			return &snapshot{members: []*member{m}}, nil
		}
	}
	entries, err := d.c.ReadDir(ctx, d.path)
	d.mu.Lock()
	d.isDir = err == nil
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return d.build(ctx, entries), nil
}

// build makes a snapshot of a listing. Only what has changed is read.
func (d *Dialer) build(ctx context.Context, entries []sigma.DirEntry) *snapshot {
	s := &snapshot{news: make(chan struct{})}
	var policy sigma.FileID
	for _, e := range entries {
		switch {
		case e.Name == PolicyName:
			policy = e.ID
		case e.Name == WantedName:
			s.wanted = true
		case e.ID.Kind != sigma.KindEndpoint || e.Name[0] == '.':
		default:
			m := d.member(ctx, e)
			switch kind := sigma.KindOf(m.err); {
			case m.err == nil:
				s.members = append(s.members, m)
				if m.endpoint.Machine == d.c.info.Principal.Machine {
					s.local = append(s.local, m)
				}
			case kind == sigma.KindNotFound, kind == sigma.KindStale: // stale: it left while it was read
				s.left = append(s.left, e)
			default:
				s.broken = append(s.broken, m)
			}
		}
	}
	s.policy = d.rule(ctx, policy)
	s.prepare()
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, m := range d.known {
		if _, there := slices.BinarySearchFunc(entries, name, func(e sigma.DirEntry, name string) int {
			return strings.Compare(e.Name, name)
		}); !there && m.open.Load() == 0 { // else it is counted on if it comes again
			delete(d.known, name)
		}
	}
	return s
}

// member gives the one of an entry, which it reads if it is new.
func (d *Dialer) member(ctx context.Context, e sigma.DirEntry) *member {
	d.mu.Lock()
	m := d.known[e.Name]
	if m != nil && m.version == e.ID.Version {
		d.mu.Unlock()
		return m
	}
	d.mu.Unlock()
	created := &member{name: e.Name, version: e.ID.Version}
	text, err := d.c.ReadLink(ctx, within(d.path, e.Name))
	if err == nil {
		created.endpoint, err = sigma.ParseEndpoint(text)
	}
	if err == nil {
		err = unfit(created.endpoint)
	}
	created.err = err
	d.mu.Lock()
	defer d.mu.Unlock()
	if m = d.known[e.Name]; err == nil && m != nil && m.err == nil && m.endpoint == created.endpoint {
		m.version = max(m.version, e.ID.Version)
		return m
	}
	if kind := sigma.KindOf(err); err == nil || kind == sigma.KindInvalid ||
		kind == sigma.KindUnsupported { // what else it is may pass
		d.known[e.Name] = created
	}
	return created
}

// rule gives the policy that is in a file, which it reads if it is new.
func (d *Dialer) rule(ctx context.Context, id sigma.FileID) Policy {
	d.mu.Lock()
	p, known := d.policy, d.ruled == id
	d.mu.Unlock()
	if known {
		return p
	}
	fresh := Policy{}
	if id != (sigma.FileID{}) {
		text, _, err := d.c.Get(ctx, within(d.path, PolicyName))
		if kind := sigma.KindOf(err); err != nil && kind != sigma.KindNotFound {
			return p // it is read at the next look
		}
		fresh, _ = ParsePolicy(text) // one that is not known here is the zero value: in turn
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.policy, d.ruled = fresh, id
	return fresh
}

// await asks for a member and waits for one to come.
func (d *Dialer) await(ctx context.Context, s *snapshot) (*snapshot, error) {
	d.awaits.Add(1)
	defer d.awaits.Add(-1)
	for asked := (time.Time{}); ; {
		now := d.follow(s)
		if now != nil {
			s = now
		}
		// not before it has asked, since the watch may not know yet what the caller saw
		if !asked.IsZero() && (len(s.members) > 0 || !s.policy.Wanted) {
			return s, nil
		}
		if !s.wanted && time.Since(asked) > wantAgain || asked.IsZero() {
			if _, err := d.c.Put(ctx, within(d.path, WantedName), nil, sigma.PutOptions{}); err != nil {
				return nil, sigma.Wrap("sdk.Dialer", within(d.path, WantedName), err)
			}
			asked = time.Now()
			d.hurry()
		}
		var again <-chan time.Time
		if now == nil { // it cannot be watched now
			again = time.After(watchAgain)
		}
		select {
		case <-s.news:
		case <-again:
		case <-ctx.Done():
			return nil, &sigma.Error{Op: "sdk.Dialer", Path: d.path, Kind: sigma.KindOf(ctx.Err()),
				Msg:  "no server came in time, and one was asked for by the file " + WantedName,
				Hint: "is there a coordinator that follows the directory and starts servers?", Err: ctx.Err()}
		}
		if d.now.Load() == nil {
			var err error
			if s, err = d.list(ctx); err != nil {
				return nil, err
			}
		}
	}
}

// follow has the directory watched, of which s was seen just now, and gives what the watch saw
// last. It gives nil if it cannot be watched.
func (d *Dialer) follow(s *snapshot) *snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := d.now.Load(); now != nil {
		return now
	}
	if time.Now().Before(d.not) || !d.isDir {
		return nil
	}
	d.now.Store(s)
	if !d.c.begun(d.watch) {
		d.now.Store(nil)
		return nil
	}
	return s
}

// see has dials use a snapshot; nil = they look themselves.
func (d *Dialer) see(s *snapshot) {
	d.mu.Lock()
	old := d.now.Swap(s)
	d.mu.Unlock()
	if old != nil {
		close(old.news)
	}
}

// watch follows the directory until nobody has dialled for a while.
func (d *Dialer) watch(ctx context.Context) {
	defer d.see(nil)
	w := watcher{d: d, last: time.Now(), ruled: make(chan struct{}, 1)}
	for {
		err := w.run(ctx)
		switch kind := sigma.KindOf(err); {
		case err == nil || w.idle(time.Now()):
			return
		case kind == sigma.KindLost, kind == sigma.KindStale, kind == sigma.KindTimeout, kind.Retryable():
		case kind == sigma.KindNotFound:
			return
		default: // it cannot be watched
			d.mu.Lock()
			d.not = time.Now().Add(watchIdle)
			d.mu.Unlock()
			return
		}
		select {
		case <-time.After(watchAgain):
		case <-ctx.Done():
			return
		case <-d.c.Done():
			return
		}
	}
}

// watcher is the goroutine that follows a Dialer's directory.
type watcher struct {
	d      *Dialer
	last   time.Time          // when a dial was noticed
	policy uint64             // FileID.Path of the policy that is watched; 0 = none
	end    context.CancelFunc // of that
	ruled  chan struct{}      // the policy has changed
}

func (w *watcher) idle(now time.Time) bool {
	if w.d.used.Swap(false) || w.d.awaits.Load() > 0 {
		w.last = now
	}
	return now.Sub(w.last) >= watchIdle
}

// errMoved says that the path leads to another directory than it did.
var errMoved = sigma.Errorf("sdk.Dialer", sigma.KindStale, "the path leads to another directory")

// run follows the directory as long as it is the same, and its server too; nil: nobody needs it.
func (w *watcher) run(ctx context.Context) error {
	d := w.d
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	failed := make(chan error, 1)
	st, err := d.c.Stat(ctx, d.path)
	if err != nil {
		return err
	}
	all.Go(func() { failed <- d.pursue(ctx, d.path, st.ID, d.wake) })
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	w.policy = 0
	for {
		timed, done := context.WithTimeout(ctx, watchMost)
		entries, err := d.c.ReadDir(timed, d.path)
		if err == nil {
			d.see(d.build(timed, entries))
		}
		done()
		if err != nil {
			return err
		}
		w.watchPolicy(ctx, &all, entries)
		for again := false; !again; {
			select {
			case <-w.ruled:
				again = !w.rule(ctx)
			case <-d.wake:
				again = true
			case err := <-failed:
				return err
			case now := <-tick.C:
				if w.idle(now) {
					return nil
				}
				if at, err := d.c.Stat(ctx, d.path); err != nil || at.ID.Path != st.ID.Path {
					return errors.Join(err, errMoved)
				}
				again = true
			case <-ctx.Done():
				return nil
			case <-d.c.Done():
				return nil
			}
		}
	}
}

// rule reads the policy after a change of its text, without a listing. It reports whether it could.
func (w *watcher) rule(ctx context.Context) bool {
	d := w.d
	text, id, err := d.c.Get(ctx, within(d.path, PolicyName))
	if err != nil || id.Path != w.policy {
		return false
	}
	p, _ := ParsePolicy(text)
	d.mu.Lock()
	d.policy, d.ruled = p, id
	old := d.now.Load()
	d.mu.Unlock()
	s := &snapshot{policy: p, members: old.members, local: old.local, broken: old.broken, wanted: old.wanted,
		news: make(chan struct{})}
	s.prepare()
	d.see(s)
	return true
}

// watchPolicy watches the policy of a listing, too: the directory tells only that it has come.
func (w *watcher) watchPolicy(ctx context.Context, all *sync.WaitGroup, entries []sigma.DirEntry) {
	var id sigma.FileID
	for _, e := range entries {
		if e.Name == PolicyName {
			id = e.ID
		}
	}
	if id.Path == w.policy {
		return
	}
	if w.policy != 0 {
		w.end()
	}
	if w.policy = id.Path; id.Path == 0 {
		return
	}
	ctx, w.end = context.WithCancel(ctx)
	all.Go(func() {
		w.d.pursue(ctx, within(w.d.path, PolicyName), id, w.ruled)
		w.d.hurry() // if it is gone
	})
}

// pursue tells of each change of a file, until watching it fails.
func (d *Dialer) pursue(ctx context.Context, path string, id sigma.FileID, changed chan<- struct{}) error {
	f, err := d.c.Handle(ctx, path)
	if err != nil {
		return err
	}
	defer f.Close()
	w, ok := f.(sigma.Watcher)
	if !ok {
		return sigma.PathError("sdk.Dialer", sigma.KindUnsupported, path)
	}
	for since := id.Version; ; wake(changed) {
		if since, err = w.Watch(ctx, since); err != nil {
			return err
		}
	}
}

// wake makes a note that something has changed; one is enough.
func wake(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
