package member

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/named"
)

// leadership is one term of this machine.
type leadership struct {
	m         *Member
	store     *termStore
	authority *authority
	server    *named.Server
	ctx       context.Context // of the term
	end       context.CancelFunc
	resigned  chan struct{} // closed when this member shall hand over
	once      sync.Once     // resigned
	changing  chan struct{} // holds a token while nobody changes the members

	mu        sync.Mutex
	expelled  map[sigma.MachineID]bool // mu
	snapshots map[uint64]*snapshot     // mu; at most snapshotsMax
	number    uint64                   // mu; of the last snapshot
}

const (
	expelledPrefix = "x/"
	closingMax     = time.Second // for handing over; nobody may be left to whom
)

// lead is one term: it returns when that is over, or ctx.
func (m *Member) lead(ctx context.Context, s *etcdStore, t term) {
	term,
		end :=
		context.WithCancel(context.WithoutCancel(
			ctx)) // what is under way when ctx ends shall be finished before the term is
	defer end()
	l := &leadership{m: m, ctx: term, end: end, resigned: make(chan struct{}), changing: make(chan struct{}, 1),
		expelled: map[sigma.MachineID]bool{}, snapshots: map[uint64]*snapshot{},
		authority: newAuthority(term.Done(), m.cfg.Timing.Quorum)}
	l.authority.lost = m.quorumLost
	l.store = &termStore{etcdStore: s, term: t, ended: term, authority: l.authority}
	l.changing <- struct{}{}
	l.renew(t.began)
	var work sync.WaitGroup
	defer work.Wait()
	defer end()
	work.Go(func() { l.beat() })
	if err := l.open(ctx); err != nil {
		if ctx.Err() == nil {
			m.log.Warn("this machine cannot lead the names", "err", err)
			m.mu.Lock()
			m.abstain = time.Now().Add(time.Second)
			m.mu.Unlock()
		}
		l.handOver()
		return
	}
	defer l.server.Close()
	work.Go(func() { l.server.Run(term) })
	if s.etcd != nil {
		work.Go(func() { l.promote() })
	}
	if s.several.Load() {
		m.log.Info("this machine's named leads", "machine", m.cfg.Machine, "term", t.number)
	}
	m.publish(l)
	select {
	case <-ctx.Done():
	case <-l.resigned:
	case <-term.Done():
	case <-s.lost:
	}
	m.publish(nil)
	everybody := func(sigma.MachineID) bool { return true }
	defer m.endSessions(everybody)
	if term.Err() != nil {
		m.endSessions(everybody)
		m.log.Warn("another machine's named leads now", "machine", m.cfg.Machine)
		return
	}
	l.server.Close() // answers those who wait for a commit, as far as it can be made
	l.closeSnapshots()
	l.handOver()
}

// handOver lets another member take over at once. Nothing is written in this term after it.
func (l *leadership) handOver() {
	l.m.know("")
	ctx, cancel := context.WithTimeout(context.Background(), closingMax)
	defer cancel()
	if err := l.store.resign(ctx, l.store.term); err != nil && l.store.several.Load() {
		l.m.log.Warn("the lead could not be handed over; another takes it when it is seen to be gone", "err", err)
	}
	l.end()
}

// open makes the Server of the term. It holds everything that was acknowledged in terms before:
// their last writes are before the one that began this term.
func (l *leadership) open(ctx context.Context) error {
	if e := l.store.etcd; e != nil &&
		len(e.Server.Alarms()) > 0 { // as this member knows it, which has applied the beginning of the term
		if err := l.store.makeRoom(ctx); err != nil {
			return err
		}
	}
	cfg := l.m.cfg.Config
	cfg.Store, cfg.Authority = l.store, l.authority
	err := l.store.Scan(ctx, expelledPrefix, func(key string, _ []byte) error {
		l.expelled[sigma.MachineID(strings.TrimPrefix(key, expelledPrefix))] = true
		return nil
	})
	if err != nil {
		return err
	}
	l.server, err = named.Open(ctx, cfg)
	return err
}

// renew lets this leader answer for a while after began.
func (l *leadership) renew(began time.Time) {
	if l.store.several.Load() {
		l.authority.extend(began.Add(l.m.cfg.Timing.Lease))
	} else {
		l.authority.extend(time.Time{})
	}
}

// beat renews the leader's lease until it learns that the term is over. A store of one member is
// only looked at.
func (l *leadership) beat() {
	timing, wasFull := l.m.cfg.Timing, false
	for {
		began, pause := time.Now(), timing.Beat
		if l.lookRound(began) {
			ctx, cancel := context.WithTimeout(l.ctx, timing.Quorum)
			ok, full, err := l.store.beat(ctx, l.store.term)
			cancel()
			if full != wasFull && err == nil {
				if wasFull = full; full {
					l.m.log.Warn("the store of names is full: it is read and not changed", "hint", named.HintFull)
				} else {
					l.m.log.Info("the store of names has room again")
				}
			}
			switch {
			case err == nil && !ok:
				l.end()
				return
			case err != nil:
				pause = pollPause
				if l.m.cfg.External != nil && l.ctx.Err() == nil {
					l.m.troubled(err)
				}
			default:
				l.m.troubled(nil)
				l.renew(began)
			}
		}
		if !retry.Pause(l.ctx, max(pause-time.Since(began), pollPause/10)) {
			return
		}
	}
}

// lookRound says whether there are other members, or somebody adds one just now. If not, this
// leader may answer without limit.
func (l *leadership) lookRound(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	several := !l.store.alone() || len(l.changing) == 0
	l.store.several.Store(several)
	if !several {
		l.renew(now)
	}
	return several
}

// promote makes learners full members once they have caught up.
func (l *leadership) promote() {
	for {
		if !retry.Pause(l.ctx, tendPause) {
			return
		}
		for _, x := range l.store.etcd.Server.Cluster().Members() {
			machine := l.m.machineOf(l.store.etcdStore, x)
			if !x.IsLearner || x.Name == "" || time.Since(l.m.net.lastHeard(machine)) > heardFar {
				continue
			}
			ctx, cancel := context.WithTimeout(l.ctx, commitTry)
			_, err := l.store.client.MemberPromote(ctx, uint64(x.ID))
			cancel()
			if err == nil {
				l.m.log.Info("a machine keeps the names too", "machine", machine)
			}
		}
	}
}

// noteElections says whom the members elect; who that is often leads the names soon.
func (m *Member) noteElections(ctx context.Context, s *etcdStore) {
	for {
		changed := s.etcd.Server.LeaderChangedNotify()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if x := s.etcd.Server.Cluster().Member(s.etcd.Server.Leader()); x != nil && s.several.Load() {
			m.log.Info("the members of the store of names have elected", "machine", m.machineOf(s, x))
		}
	}
}

// publish makes l what is asked; nil: another leads, or will.
func (m *Member) publish(l *leadership) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leadership = l
	if m.cfg.Board != nil {
		m.cfg.Board.AllChanged()
	}
	m.changedLocked()
}

// How long an attach waits while nobody is known to lead, and while this machine leads and does not
// reach the others.
const (
	attachMax  = 5 * time.Second
	attachHold = 1500 * time.Millisecond // as long as the members need to elect a leader
)

// leading returns this machine's term, or an error that says who leads.
func (m *Member) leading(ctx context.Context) (*leadership, error) {
	const op = "named.Attach"
	late := time.NewTimer(min(attachMax, m.cfg.Timing.Quorum+time.Second))
	defer late.Stop()
	for {
		m.mu.Lock()
		l, leader, changed, retired := m.leadership, m.leader, m.changed, m.retired
		m.mu.Unlock()
		switch {
		case retired:
			return nil, &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
				Msg: fmt.Sprintf("machine %s keeps the names no more", m.cfg.Machine)}
		case l != nil:
			return l, nil
		case leader != "" && leader != m.cfg.Machine:
			return nil, &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: fmt.Sprintf("named of machine %s leads",
				leader)}
		}
		select {
		case <-changed:
		case <-late.C:
			if m.cfg.External != nil {
				return nil, m.quorumLost(op)
			}
			return nil, &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
				Msg:  "no named leads now: quorum of the control machines is lost, or is just being found",
				Hint: "sigma machine ls shows which are there"}
		case <-ctx.Done():
			return nil, sigma.Wrap(op, "", ctx.Err())
		}
	}
}

// Attach implements sigma.Tree.
func (m *Member) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	l, err := m.leading(ctx)
	if err != nil {
		return nil, err
	}
	if l.isExpelled(p.Machine) {
		return nil, expelledError(p.Machine)
	}
	soon, cancel := context.WithTimeout(ctx, attachHold) // another may lead already, to whom the caller should go on
	defer cancel()
	if err := l.authority.Hold(soon); err != nil {
		return nil, err
	}
	if p.System && name == "" {
		return l.callable(), nil
	}
	return l.server.Attach(ctx, p, name)
}

func (l *leadership) isExpelled(machine sigma.MachineID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expelled[machine]
}

func expelledError(machine sigma.MachineID) error {
	return &sigma.Error{Op: "named.Attach", Kind: sigma.KindStale,
		Msg: fmt.Sprintf("machine %s was lost or removed, and has not come back yet", machine)}
}

// tie is a session's tie to its machine and to the term in which it began.
type tie struct {
	machine sigma.MachineID
	end     context.CancelFunc
	over    chan struct{}
}

// Session is asked by who serves sessions: the session lasts no longer than the context that it
// returns, and done is called when it has ended.
func (m *Member) Session(ctx context.Context, p sigma.Principal) (_ context.Context, done func(), err error) {
	m.mu.Lock()
	l := m.leadership
	m.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	s := &tie{machine: p.Machine, end: cancel, over: make(chan struct{})}
	m.mu.Lock()
	m.sessions[s] = true
	m.mu.Unlock()
	done = func() {
		cancel()
		m.mu.Lock()
		delete(m.sessions, s)
		m.mu.Unlock()
		close(s.over)
	}
	if l != nil &&
		l.isExpelled(p.Machine) {
		// after it is in the list, so that whoever expels the machine ends it, or it is refused
		// here
		done()
		return nil, nil, expelledError(p.Machine)
	}
	return ctx, done, nil
}

// endSessions ends the sessions of some machines and returns what to wait for.
func (m *Member) endSessions(of func(sigma.MachineID) bool) (over []<-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.sessions {
		if of(s.machine) {
			s.end()
			over = append(over, s.over)
		}
	}
	return over
}

// expel ends all that a machine has here, and refuses it from now on, also in later terms.
func (l *leadership) expel(ctx context.Context, machine sigma.MachineID) error {
	const op = "named.expel"
	if err := l.writeMark(ctx, op, clientv3.OpPut(expelledPrefix+string(machine),
		string([]byte{markVersion}))); err != nil {
		return err
	}
	l.mu.Lock()
	l.expelled[machine] = true
	l.mu.Unlock()
	for _, over := range l.m.endSessions(func(m sigma.MachineID) bool { return m == machine }) {
		select {
		case <-over:
		case <-ctx.Done():
			return sigma.Wrap(op, "", ctx.Err())
		}
	}
	return l.server.EndLeases(ctx, machine)
}

// admit takes expel back.
func (l *leadership) admit(ctx context.Context, machine sigma.MachineID) error {
	if !l.isExpelled(machine) {
		return nil
	}
	if err := l.writeMark(ctx, "named.admit", clientv3.OpDelete(expelledPrefix+string(machine))); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.expelled, machine)
	return nil
}

func (l *leadership) writeMark(ctx context.Context, op string, change clientv3.Op) error {
	r, err := l.store.client.Txn(ctx).If(l.store.term.holds()).Then(change).Commit()
	switch {
	case err != nil:
		return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "the store of names does not answer", Err: err}
	case !r.Succeeded:
		l.end()
		return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "another machine's named leads now"}
	}
	return nil
}
