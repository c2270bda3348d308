package member

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/lib/replica"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// A group begins with one member: the one that makes the group's founder file. Every other member,
// also one that is started again, is new to the group: it has an ID that was never used, and asks
// the leader to join. The leader has it take the place of members whose names are gone, so that a
// group has as many members as procs. A founder whose proc ends while it is alone takes all that
// the group has with it: then another proc, or the same one started again, replaces the file and
// begins with nothing. The file says when the group is not one of one any more, before it grows. A
// group of one replica has others only while it is replaced: it begins anew when none of its procs
// runs.

// founder is what the founder's file has.
type founder struct {
	ID    uint64 `json:"id"`
	Name  string `json:"name"`
	Grown bool   `json:"grown,omitempty"`
}

func (f founder) text() []byte {
	text, _ := json.Marshal(f) // which has no errors
	return text
}

// founder reads the file.
func (m *Member) founder(ctx context.Context) (f founder, id sigma.FileID, err error) {
	text, id, err := m.c.Get(sigma.WithSync(ctx), layout.Founder(m.name, m.group))
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	return f, id, err
}

// begins reports whether this member begins the group.
func (m *Member) begins(ctx context.Context) (bool, error) {
	path, text := layout.Founder(m.name, m.group), founder{ID: m.id, Name: m.self}.text()
	if err := m.c.MkdirAll(ctx, layout.Dir(m.name)+"/founders", 0o755); err != nil {
		return false, err
	}
	_, err := m.c.Put(ctx, path, text, sigma.PutOptions{MustMake: true})
	if err == nil || sigma.KindOf(err) != sigma.KindExists {
		return err == nil, err
	}
	if m.durable { // what it has begun is in its log
		f, _, err := m.founder(ctx)
		return err == nil && f.ID == m.id, err
	}
	over, id, err := m.founderEnded(ctx)
	if err != nil || !over {
		return false, err
	}
	_, err = m.c.Put(ctx, path, text, sigma.PutOptions{IfVersion: id.Version})
	if err != nil && sigma.KindOf(err) == sigma.KindVersion {
		return false, nil
	}
	return err == nil, err
}

// founderEnded reports whether the proc that began the group has ended while it was alone, or all
// members of a group of one replica have.
func (m *Member) founderEnded(ctx context.Context) (bool, sigma.FileID, error) {
	f, id, err := m.founder(ctx)
	if err != nil || f.Grown && m.replicas > 1 {
		return false, id, err
	}
	procs, err := m.c.List(ctx, false)
	running := slices.ContainsFunc(procs, func(p sigma.ProcInfo) bool {
		other := p.Name == layout.GroupProcs(m.name, m.group) && string(p.ID) != m.self
		member := p.State == sigma.ProcRunning && !p.Times.Started.IsZero()
		return string(p.ID) == f.Name || f.Grown && other && member
	})
	return err == nil && !running, id, err
}

// grow notes in the file that the group gets a second member.
func (m *Member) grow(ctx context.Context) error {
	f, id, err := m.founder(ctx)
	if err != nil || f.Grown {
		return err
	}
	if f.ID != m.id {
		return sigma.Errorf("kv.Join", sigma.KindStale, "another member has begun the group anew")
	}
	f.Grown = true
	_, err = m.c.Put(ctx, layout.Founder(m.name, m.group), f.text(), sigma.PutOptions{IfVersion: id.Version})
	return err
}

// enter returns when the member is one of its group.
func (m *Member) enter(ctx context.Context) error {
	arg := calls.JoinArg{ID: m.id, Name: m.self}
	enc := sigmap.NewEncoder(nil)
	arg.Code(enc)
	led := time.Now() // when the group had a leader last
	for {
		err := error(nil)
		if m.replica.Leads() {
			err = m.found(ctx)
		}
		if _, is := m.replica.Status().Members[m.id]; is && err == nil {
			return nil
		}
		if !m.replica.Leads() {
			within, cancel := context.WithTimeout(ctx, lonelyMost)
			_, err = m.others.Call(within, calls.Join, calls.Leader, enc.Bytes(), nil)
			cancel()
		}
		if err != nil {
			m.log.Debug("waits to be a member", "err", err)
			if over, _, err := m.founderEnded(ctx); over && err == nil && !m.durable {
				return sigma.Errorf("kv.member", sigma.KindStale, "the group has ended before it grew: it begins anew")
			}
			if m.hasLeader(ctx) {
				led = time.Now()
			} else if time.Since(led) > lostAfter {
				return m.errNoMajority()
			}
		}
		if !retry.Pause(ctx, againPause) {
			return context.Cause(ctx)
		}
	}
}

// hasLeader asks whether a member leads the group.
func (m *Member) hasLeader(ctx context.Context) bool {
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := m.others.Call(within, calls.Status, calls.Leader, nil, nil)
	return err == nil
}

// errNoMajority is why a proc ends that cannot become a member: nobody can take it in.
func (m *Member) errNoMajority() error {
	e := &sigma.Error{Op: "kv.member", Kind: sigma.KindUnavailable, Msg: "most members of the group do not run",
		Hint: "they go on from their logs as soon as their machines are up"}
	if !m.durable {
		e.Kind, e.Msg = sigma.KindLost, "most members of the group have ended, and its keys with them"
		e.Hint = "remove the store and make it again: sigma kv rm, then sigma kv create or restore"
	}
	return e
}

// join makes a new proc a member. The leader answers it when the new one has all that the others
// have.
func (m *Member) join(ctx context.Context, arg, reply []byte) ([]byte, error) {
	var a calls.JoinArg
	if err := sigmap.Parse(arg, a.Code); err != nil {
		return reply, err
	}
	if err := m.replica.Read(ctx); err != nil {
		return reply, err
	}
	if a.Name == m.self && a.ID != m.id || a.ID == 0 || a.Name == "" {
		return reply, errRequest
	}
	m.joined.Lock()
	defer m.joined.Unlock()
	members := maps.Clone(m.replica.Status().Members)
	if _, is := members[a.ID]; is {
		return reply, nil
	}
	live, err := m.live(ctx)
	if err != nil {
		return reply, err
	}
	if !live[a.Name] {
		return reply, sigma.Errorf("kv.Join", sigma.KindUnavailable, "no endpoint of %.80s is published", a.Name)
	}
	maps.DeleteFunc(members, func(id uint64, name string) bool {
		return id != m.id && (!m.durable && !live[name] || name == a.Name)
	})
	members[a.ID] = a.Name
	if err := m.grow(ctx); err != nil {
		return reply, err
	}
	m.log.Info("a member joins", "proc", a.Name, "members", len(members))
	return reply, m.replica.Change(ctx, members)
}

// leave takes a member out of the group.
func (m *Member) leave(ctx context.Context, arg, reply []byte) ([]byte, error) {
	var a calls.JoinArg
	if err := sigmap.Parse(arg, a.Code); err != nil {
		return reply, err
	}
	if err := m.replica.Read(ctx); err != nil {
		return reply, err
	}
	m.joined.Lock()
	defer m.joined.Unlock()
	members := maps.Clone(m.replica.Status().Members)
	if delete(members, a.ID); a.ID == m.id || len(members) == 0 {
		return reply, errRequest
	}
	m.log.Info("a member leaves", "proc", a.Name, "members", len(members))
	return reply, m.replica.Change(ctx, members)
}

// depart hands leadership over, if the member has it, and has the others go on without it. A member
// that is alone, or that finds no other one in time, just ends. So does a durable one that cannot
// hand over at once, as when all are asked to go: the proc that is started in its place goes on
// with its log.
func (m *Member) depart(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, departMost)
	defer cancel()
	arg := calls.JoinArg{ID: m.id, Name: m.self}
	enc := sigmap.NewEncoder(nil)
	arg.Code(enc)
	for {
		st := m.replica.Status()
		if _, is := st.Members[m.id]; !is || len(st.Members) == 1 || m.durable && !st.Leads {
			return
		}
		var err error
		if st.Leads {
			if err = m.replica.Transfer(ctx, foremost(st)); m.durable {
				return
			}
		} else if _, err = m.others.Call(ctx, calls.Leave, calls.Leader, enc.Bytes(), nil); err == nil {
			return
		}
		if err != nil {
			m.log.Debug("cannot leave the group now", "err", err)
			if !retry.Pause(ctx, againPause) {
				return
			}
		}
	}
}

// foremost is the other member that has most of the leader's log.
func foremost(st replica.Status) (id uint64) {
	for other := range st.Members {
		if other != st.ID && (id == 0 || st.Acknowledged[other] > st.Acknowledged[id]) {
			id = other
		}
	}
	return id
}

// live gives the names of procs that are published as members.
func (m *Member) live(ctx context.Context) (map[string]bool, error) {
	entries, err := m.c.ReadDir(sigma.WithSync(ctx), layout.Members(m.name, m.group))
	if err != nil {
		return nil, err
	}
	live := map[string]bool{}
	for _, e := range entries {
		live[e.Name] = true
	}
	return live, nil
}

// tend looks after the group until ctx ends, or the member is none any more.
func (m *Member) tend(ctx context.Context) error {
	missing := map[uint64]time.Time{}
	led := time.Now()
	looked := time.Time{}
	for retry.Pause(ctx, tendEvery) {
		m.full.Store(m.store.Bytes() > m.limit)
		st := m.replica.Status()
		if err := excluded(st); err != nil && !m.departing.Load() {
			return err
		}
		if st.Leader != 0 {
			led = time.Now()
		} else if time.Since(led) > lonelyMost {
			return &sigma.Error{Op: "kv.member", Kind: sigma.KindUnavailable,
				Msg: "no leader of the group is known", Hint: "most of its members have ended at the same time, " +
					"or this one was taken out of the group"}
		}
		if !st.Leads {
			clear(missing)
			continue
		}
		err := m.found(ctx)
		if err == nil {
			err = m.expire(ctx)
		}
		if err == nil && len(st.Members) > 1 && !m.durable && time.Since(looked) > time.Second {
			looked = time.Now()
			err = m.removeDead(ctx, missing)
		}
		if _, redirected := call.Owner(err); err != nil && !redirected && ctx.Err() == nil {
			m.log.Debug("cannot tend the group now", "err", err)
		}
	}
	return context.Cause(ctx)
}

// excluded returns a KindStale error if the member was removed from its group. Such a member stands
// for no election and keeps the leader that it knew last. Its proc ends, and joins with a new ID.
func excluded(st replica.Status) error {
	if st.Members[st.ID] != "" || st.Learners[st.ID] != "" {
		return nil
	}
	return &sigma.Error{Op: "kv.member", Kind: sigma.KindStale, Msg: "this member was taken out of its group",
		Hint: "initd starts its proc again, which joins the group anew"}
}

// removeDead takes members out of the group whose names are missing for a while, if those that are
// left are a majority. It does nothing while another one joins.
func (m *Member) removeDead(ctx context.Context, missing map[uint64]time.Time) error {
	if !m.joined.TryLock() {
		return nil
	}
	defer m.joined.Unlock()
	live, err := m.live(ctx)
	if err != nil {
		return err
	}
	members := m.replica.Status().Members
	left := remaining(members, m.id, live, missing, time.Now())
	if len(left) == len(members) || 2*len(left) <= len(members) {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, lonelyMost)
	defer cancel()
	m.log.Info("members have ended", "left", len(left))
	return m.replica.Change(within, left)
}

// remaining gives those members whose names are live, or were at any time in the last goneAfter.
// missing is since when the others' names are missing; remaining brings it up to date.
func remaining(members map[uint64]string, self uint64, live map[string]bool, missing map[uint64]time.Time,
	now time.Time) map[uint64]string {
	maps.DeleteFunc(missing, func(id uint64, _ time.Time) bool { return members[id] == "" })
	left := maps.Clone(members)
	for id, name := range members {
		since, is := missing[id]
		switch {
		case live[name] || id == self:
			delete(missing, id)
		case !is:
			missing[id] = now
		case now.Sub(since) > goneAfter:
			delete(left, id)
		}
	}
	return left
}
