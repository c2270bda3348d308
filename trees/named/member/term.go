package member

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/named"
)

// Of the nameds of a store exactly one leads, because it answers from memory. Who that is stands in
// the store:
//
//	n/term    number and machine; written when a leader takes over or resigns, and compared by
//	          each transaction of a leader
//	n/beat    written by the leader again and again
//
// Writes of a deposed leader fail by that comparison alone. Its reads need time: a leader answers
// for Lease after it *began* a beat that succeeded. Another takes over by a transaction that
// compares both keys, so there was no beat since the one that it saw, and it does so only when it
// saw that one more than Lease ago (Patience). Both measure on their own clocks, which need not
// agree on the hour, only run about equally fast: Patience is a fifth longer.
//
// A store that is full (an operator's etcd with the alarm NOSPACE) takes deletions only. Then a
// beat is the removal of n/beat, which changes nothing after the first, so that nobody could tell
// whether there was one: nobody takes over from a leader without a beat. Who would puts one, which
// a full store refuses, and waits for Patience again: whatever beat follows changes it.
//
// A store of one member needs no beats: nobody else can take over, and the directory's lock keeps a
// second process out.

// Timing is how a leader holds its term, and when others take it.
type Timing struct {
	Beat  time.Duration // between beats
	Lease time.Duration // how long a leader answers after a beat began
	// a leader from whose machine nothing comes is replaced so long after its last beat was seen;
	// more than Lease
	Patience time.Duration
	Slow     time.Duration // the same for one that is heard, and so only slow
	// for so long the members must have had a leader of their own, so that the beat of a slow one
	// could have come through
	Settle time.Duration
	Quorum time.Duration // how long a request waits while most members cannot be reached
}

// DefaultTiming suits machines on one network. A lost leader is replaced after 1.2 s, if the
// members elect another of their own at the first attempt.
func DefaultTiming() Timing {
	return Timing{Beat: 250 * time.Millisecond, Lease: 900 * time.Millisecond, Patience: 1100 * time.Millisecond,
		Slow: 6 * time.Second, Settle: 300 * time.Millisecond, Quorum: 4 * time.Second}
}

const (
	termKey = "n/term"
	beatKey = "n/beat"
	// leaderPrefix is of all that tells who leads, and belongs into no snapshot.
	leaderPrefix = "n/"

	raftTick     = 50 * time.Millisecond
	raftElection = 600 * time.Millisecond // plus up to as much again by chance
	commitPause  = 50 * time.Millisecond  // before a commit is looked for
	commitTry    = 3 * time.Second        // one attempt at a commit; longer than an election
)

// term is a record of n/term and what is known of it.
type term struct {
	number  uint64
	machine sigma.MachineID // "" = whoever wrote it has resigned
	at      named.Revision  // when it was written; 0 = never
	beat    named.Revision  // when the beat was
	began   time.Time       // of a term of one's own: when it was asked for
	text    string          // of a term of one's own: the record
}

// markVersion begins the records that tell who leads and who is expelled.
const markVersion = 1

func (t term) encode() []byte {
	b := binary.AppendUvarint([]byte{markVersion}, t.number)
	b = append(binary.AppendUvarint(b, uint64(len(t.machine))), t.machine...)
	nonce := make([]byte, termNonce)
	rand.Read(nonce)
	return append(b, nonce...)
}

// termNonce is how long what tells the terms of two stores apart is.
const termNonce = 8

func decodeTerm(b []byte) (t term, err error) {
	bad := sigma.Errorf("named.decodeTerm", sigma.KindOther, "a damaged record of who leads: %x", b)
	if len(b) == 0 || b[0] != markVersion {
		return t, bad
	}
	number, n := binary.Uvarint(b[1:])
	if n <= 0 {
		return t, bad
	}
	b = b[1+n:]
	size, n := binary.Uvarint(b)
	if n <= 0 || size > 255 || uint64(len(b)-n) != size && uint64(len(b)-n) != size+termNonce {
		return t, bad
	}
	t.number, t.machine = number, sigma.MachineID(b[n:n+int(size)])
	return t, nil
}

// beatless says that somebody led when the store was full, and nobody has beaten since.
func (t term) beatless() bool { return t.at > 0 && t.beat == 0 && t.machine != "" }

// holds is the condition of everything that a leader writes. A revision would not do: an etcd that
// was emptied meanwhile has them again.
func (t term) holds() clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(termKey), "=", t.text)
}

// look reads who leads as this member knows it, which may be old. Of an external etcd it is as most
// members know it, and an error if self may not lead there.
func (s *etcdStore) look(ctx context.Context, self sigma.MachineID) (t term, err error) {
	options := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithSerializable()}
	member := s.etcd != nil
	if !member {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, externalLook)
		defer cancel()
		options = options[:1]
	}
	r, err := s.client.Get(ctx, leaderPrefix, options...)
	if err != nil {
		return t, err
	}
	system := ""
	for _, kv := range r.Kvs {
		switch string(kv.Key) {
		case termKey:
			beat := t.beat
			if t, err = decodeTerm(kv.Value); err != nil {
				return t, err
			}
			t.at, t.beat = named.Revision(kv.ModRevision), beat
		case beatKey:
			t.beat = named.Revision(kv.ModRevision)
		case systemKey:
			system = string(kv.Value)
		case memberPrefix + string(self):
			member = true
		}
	}
	switch {
	case system != s.claimed:
		return t, s.foreign(system)
	case !member:
		return t, errRemoved
	}
	return t, nil
}

// take makes self the leader if nothing has changed since seen. ok is false if it has.
func (s *etcdStore) take(ctx context.Context, seen term, self sigma.MachineID) (t term, ok bool, err error) {
	ctx, cancel := s.untilElection(ctx)
	defer cancel()
	t = term{number: seen.number + 1, machine: self}
	t.text = string(t.encode())
	unchanged := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(termKey), "=", int64(seen.at)),
		clientv3.Compare(clientv3.ModRevision(beatKey), "=", int64(seen.beat))}
	if s.etcd == nil {
		unchanged = append(unchanged, clientv3.Compare(clientv3.Value(systemKey), "=", s.claimed),
			clientv3.Compare(clientv3.CreateRevision(memberPrefix+string(self)), ">", 0))
	}
	r, err := s.client.Txn(ctx).If(unchanged...).
		Then(clientv3.OpPut(termKey, t.text), clientv3.OpPut(beatKey, "")).Commit()
	if err != nil || !r.Succeeded {
		return t, false, err
	}
	t.at = named.Revision(r.Header.Revision)
	t.beat = t.at
	return t, true, nil
}

// resign lets others take over at once.
func (s *etcdStore) resign(ctx context.Context, t term) error {
	_, err := s.client.Txn(ctx).If(t.holds()).Then(clientv3.OpPut(termKey,
		string(term{number: t.number}.encode()))).Commit()
	return err
}

// beat is false if the term is over. full says that the store takes no puts any more.
func (s *etcdStore) beat(ctx context.Context, t term) (ok, full bool, err error) {
	ctx, cancel := s.untilElection(ctx)
	defer cancel()
	r, err := s.client.Txn(ctx).If(t.holds()).Then(clientv3.OpPut(beatKey, "")).Commit()
	if full = errors.Is(err, rpctypes.ErrNoSpace); full {
		r, err = s.client.Txn(ctx).If(t.holds()).Then(clientv3.OpDelete(beatKey)).Commit()
	}
	return err == nil && r.Succeeded, full, err
}

// restoreBeat puts a beat where the leader took it away because the store was full. Where that
// succeeds there is room again, and whoever leads notices or is replaced as ever.
func (s *etcdStore) restoreBeat(ctx context.Context, seen term) error {
	_, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(termKey), "=", int64(seen.at)),
		clientv3.Compare(clientv3.ModRevision(beatKey), "=", 0)).Then(clientv3.OpPut(beatKey, "")).Commit()
	return err
}

// outlook is what a member that does not lead sees at one moment.
type outlook struct {
	now        time.Time
	term       term
	raftLeader uint64    // of etcd's members; 0 = none
	first      bool      // it is this one
	alone      bool      // there is no other member
	learner    bool      // this one does not count yet
	abstains   bool      // it has resigned a moment ago
	heard      time.Time // when something came from the leader's machine last
}

// watcher decides when a member tries to lead. It is a pure function of what it is shown.
type watcher struct {
	timing Timing
	self   sigma.MachineID

	beat       named.Revision
	beatSeen   time.Time
	raftLeader uint64
	raftSince  time.Time
}

// Something comes from a machine whose etcd member leads the others, or is led by this one, several
// times a second; otherwise at least every 1.7 s.
const (
	heardNear = 600 * time.Millisecond
	heardFar  = 2500 * time.Millisecond
)

// yieldPause is for how long any other leaves it to the member that leads the others to lead the
// names.
const yieldPause = 200 * time.Millisecond

// look notes what there is to see.
func (w *watcher) look(o outlook) {
	if w.beatSeen.IsZero() || o.term.beat != w.beat {
		w.beat, w.beatSeen = o.term.beat, o.now
	}
	if w.raftSince.IsZero() || o.raftLeader != w.raftLeader {
		w.raftLeader, w.raftSince = o.raftLeader, o.now
	}
}

// leader is who can be said to lead: nobody, if the one who did may have lost its lease. Who asks
// then waits here, and hears of the next at once.
func (w *watcher) leader(o outlook) sigma.MachineID {
	switch {
	case o.raftLeader != 0 && o.term.beatless(): // nobody else can lead as long as the store is full
		return o.term.machine
	case o.raftLeader == 0 || o.now.Sub(w.beatSeen) > w.timing.Lease:
		return ""
	}
	return o.term.machine
}

// due says that it is time to take over.
func (w *watcher) due(o outlook) bool {
	w.look(o)
	if o.learner || o.abstains || o.raftLeader == 0 {
		return false
	}
	switch {
	case o.alone: // whoever else led was replaced before it was removed, or is this machine under another name
		return true
	case o.term.machine == w.self: // a process before this one, which has ended: it had the directory's lock
		return true
	case o.term.machine == "":
		// nobody has led, or who did has resigned. The member that leads the others is the fastest
		return o.first || o.now.Sub(w.beatSeen) > 3*yieldPause/2
	}
	patience := w.timing.Patience
	if near := o.now.Sub(o.heard); near < heardNear || !o.first && near < heardFar {
		patience = w.timing.Slow
	}
	if !o.first {
		patience += yieldPause
	}
	return o.now.Sub(w.beatSeen) > patience && o.now.Sub(w.raftSince) > w.timing.Settle
}

// authority says whether a leader may answer now. The zero value may not. Safe for concurrent use.
type authority struct {
	start time.Time
	until atomic.Int64 // nanoseconds after start; forever = no limit
	over  <-chan struct{}
	most  time.Duration         // that requests wait after the leader had to stop answering
	lost  func(op string) error // what they are told then

	mu      sync.Mutex
	renewed chan struct{} // mu; closed with the next extension
}

const forever = math.MaxInt64

func newAuthority(over <-chan struct{}, most time.Duration) *authority {
	return &authority{start: time.Now(), over: over, most: most, lost: quorumLost, renewed: make(chan struct{})}
}

// extend lets the leader answer until then; the zero time means without limit.
func (a *authority) extend(until time.Time) {
	if until.IsZero() {
		a.until.Store(forever)
	} else {
		a.until.Store(int64(until.Sub(a.start)))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.renewed)
	a.renewed = make(chan struct{})
}

// Hold implements named.Authority.
func (a *authority) Hold(ctx context.Context) error {
	if a.held() {
		return nil
	}
	return a.wait(ctx)
}

func (a *authority) held() bool {
	until := a.until.Load()
	return until == forever || int64(time.Since(a.start)) < until
}

func (a *authority) wait(ctx context.Context) error {
	const op = "named.hold"
	lapsed := a.start.Add(time.Duration(a.until.Load())) // one that has lapsed for long answers at once
	late := time.NewTimer(time.Until(lapsed.Add(a.most)))
	defer late.Stop()
	for {
		a.mu.Lock()
		renewed := a.renewed
		a.mu.Unlock()
		if a.held() {
			return nil
		}
		select {
		case <-renewed:
		case <-a.over:
			return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "another machine's named leads now"}
		case <-late.C:
			return a.lost(op)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return a.lost(op)
			}
			return sigma.Wrap(op, "", ctx.Err())
		}
	}
}

func quorumLost(op string) error {
	return &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
		Msg:  "quorum is lost: most control machines cannot be reached, so names can be neither read nor changed",
		Hint: "names come back when the control machines do: sigma machine ls"}
}

// termStore is the store as one leader writes it: everything is on condition of its term. A commit
// whose outcome is not known is looked for and repeated, which does no harm since its guard lets it
// take effect once.
type termStore struct {
	*etcdStore
	term      term
	ended     context.Context // of the term
	authority *authority
	doubted   atomic.Bool // there was a commit whose outcome was not known at once
}

// Get implements Store.
func (s *termStore) Get(ctx context.Context, key string) (value []byte, at named.Revision, found bool, err error) {
	return s.get(ctx, key, s.near()...)
}

// Scan implements Store.
func (s *termStore) Scan(ctx context.Context, prefix string, f func(key string, value []byte) error) error {
	return s.scan(ctx, prefix, f, s.near()...)
}

// near lets a leader read what this member has, without asking the others: it has applied the
// beginning of the term, so all that leaders before could write, and each commit of the term was
// applied here before its outcome was known. That saves a new leader's first readers round trips
// and etcd's pauses in between, when every moment counts. Of an external etcd no member is near:
// the next that answers may be one that lags.
func (s *termStore) near() []clientv3.OpOption {
	if s.etcd == nil || s.doubted.Load() {
		return nil
	}
	return []clientv3.OpOption{clientv3.WithSerializable()}
}

// Settled says that no commit before can still take effect: those of earlier terms by the term, and
// of this one there is none whose outcome is not known.
func (s *termStore) Settled() bool { return !s.doubted.Load() }

// Close implements Store. The store outlives the term.
func (s *termStore) Close() {}

// Commit implements Store.
func (s *termStore) Commit(ctx context.Context, b named.Batch) (named.Revision, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ended, cancel)()
	if err := s.admit(ctx, b); err != nil {
		return 0, err
	}
	began := time.Now()
	for doubt := false; ; doubt = true {
		rev, err := s.attempt(ctx, b)
		refused := errors.Is(err, named.ErrFull) || errors.Is(err, named.ErrConflict)
		if err == nil || refused && !doubt {
			return rev, err
		}
		s.doubted.Store(true)
		if ctx.Err() == nil && !errors.Is(err, named.ErrConflict) {
			s.log.Debug("looking for a commit whose outcome is unknown", "err", err)
		}
		// If not even the beats come through for long, whoever waits is told that it is not known.
		// The realm is loaded again when there is a quorum.
		soon, cancel := context.WithDeadline(ctx, began.Add(s.authority.most))
		herr := s.authority.Hold(soon)
		cancel()
		if herr != nil {
			return 0, unknownOutcome(err, herr)
		}
		done, rev, lerr := s.lookFor(ctx, b)
		switch {
		case lerr != nil && !errors.Is(lerr, errOvertaken) && ctx.Err() == nil && time.Since(began) < s.authority.most:
			continue
		case lerr != nil:
			return 0, unknownOutcome(err, lerr)
		case done:
			return rev, nil
		case errors.Is(err,
			// the guard is as it was, so it is the term that is over, and nothing of ours can come
			// any more
			named.ErrConflict):
			return 0, err
		case refused: // for want of room; an attempt before may yet take effect
			return 0, unknownOutcome(err, errors.New("an attempt before may yet take effect"))
		}
	}
}

// unknownOutcome hides what refused the last attempt from those who would take it for the fate of
// all: an attempt before may have taken effect.
func unknownOutcome(last, why error) error { return fmt.Errorf("%v: %w", last, why) }

// untilElection gives a context that ends when the members have elected another leader: with the
// one before a proposal may have died, and etcd would not say so.
func (s *etcdStore) untilElection(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if s.etcd != nil && s.several.Load() {
		changed := s.etcd.Server.LeaderChangedNotify()
		go func() {
			select {
			case <-changed:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// attempt tries once, and gives up early after an election.
func (s *termStore) attempt(ctx context.Context, b named.Batch) (named.Revision, error) {
	ctx, end := context.WithTimeout(ctx, commitTry)
	defer end()
	ctx, cancel := s.untilElection(ctx)
	defer cancel()
	return s.commitIf(ctx, b, s.term.holds())
}

var errOvertaken = errors.New("somebody else has written since")

// lookMax is how long one look takes at most.
const lookMax = time.Second

// lookFor says whether a batch has taken effect. An error says that this cannot be known now.
func (s *termStore) lookFor(ctx context.Context, b named.Batch) (done bool, at named.Revision, err error) {
	for {
		if !retry.Pause(ctx, commitPause) {
			return false, 0, ctx.Err()
		}
		once, cancel := context.WithTimeout(ctx, lookMax)
		value, at, found, err := s.etcdStore.Get(once, b.Guard)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil && s.authority.held():
			continue
		case err != nil:
			return false, 0, err
		case at == b.GuardAt:
			return false, 0, nil
		}
		for _, kv := range b.Puts {
			if kv.Key == b.Guard && found && string(kv.Value) == string(value) {
				return true, at, nil
			}
		}
		for _, key := range b.Deletes {
			if key == b.Guard && !found {
				return true, at, nil
			}
		}
		return false, 0, errOvertaken
	}
}

// DeletePrefix implements Store.
func (s *termStore) DeletePrefix(ctx context.Context, prefix string, most int) (bool, error) {
	more, err := s.deletePrefixIf(ctx, prefix, most, s.term.holds())
	if err != nil {
		s.doubted.Store(true)
	}
	return more, err
}

var _ named.Store = (*termStore)(nil)
