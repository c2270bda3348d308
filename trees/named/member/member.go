// Package member is named on one of several machines: a member of the store in etcd, and while it
// leads the one server of names.
//
// It promises: of the members of a store at most one answers at any moment, and it knows everything
// that was acknowledged by those before it (term.go says how); a leader that is lost is replaced
// within seconds while most members are there; a member that was removed, and a machine that was
// expelled, can do no more harm. A snapshot is the store at one moment, or none.
//
// It assumes: clocks run about equally fast; Peers reaches the named of other machines and nobody
// else.
//
// It is used by cmd/named, which serves it with the server kit; others see sigma.Tree.
//
// Where things are: etcd.go the store, upkeep.go how it keeps its size; member.go, campaign.go and
// lead.go a member's life; peers.go the ways between members; term.go who leads; calls.go what the
// provider asks; snapshot.go and restore.go. An etcd of the operator's: external.go.
//
// Locks: Member.mu, network.mu and authority.mu alone.
package member

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/diskspace"
	"sigmaos.dev/trees/named"
)

// membersMax bounds the members of a store; 5 is the most that makes sense.
const membersMax = 7

// Config says what a Member is.
type Config struct {
	// Config is of the server while this member leads; Store and Authority must be nil.
	named.Config
	// Dir is the data directory of the embedded etcd, made if missing. Two members on one directory
	// are refused.
	Dir string
	// StoreMax is how big etcd's database may be. Default 8 GiB, the most that etcd recommends.
	StoreMax sigma.Bytes
	Machine  sigma.MachineID // this one
	// Initial is what member-add of the leading named answered. It is used by a machine that has no
	// store yet, or that of a membership before. Without it such a machine founds a store.
	Initial string
	Peers   Peers // may be nil: then there cannot be another member
	// External is used instead of an etcd in this process if it is not nil. Then Initial and Peers
	// are of no use.
	External *External
	Timing   Timing // zero = DefaultTiming
	// Succeed makes of the record of the machines in a snapshot the one with which this machine
	// begins when the snapshot replaces its store; nil = it stays as it is.
	Succeed func(record []byte) ([]byte, error)

	disk func(dir string) (sigma.Space, error) // of tests; nil = diskspace.Of
}

func (cfg Config) withDefaults() Config {
	cfg.StoreMax = cmp.Or(cfg.StoreMax, 8*sigma.GiB)
	if cfg.disk == nil {
		cfg.disk = diskspace.Of
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Timing == (Timing{}) {
		cfg.Timing = DefaultTiming()
	}
	return cfg
}

// Member is the name service on one of several machines: a member of the store, and while it leads
// the one Server of the system. It is a sigma.Tree as Server is; who attaches while another leads
// is told who. A provider who attaches without a name gets a callable file, see sigmap.FileNames.
// Safe for concurrent use.
type Member struct {
	cfg     Config
	log     *slog.Logger
	net     *network
	initial *initial
	joining bool // had no store when it was opened

	mu         sync.Mutex
	store      *etcdStore      // mu; nil before this machine has joined
	leadership *leadership     // mu; nil while another leads
	leader     sigma.MachineID // mu; who leads, as far as is known; "" = unknown
	changed    chan struct{}   // mu; closed and replaced when leadership or leader changes
	sessions   map[*tie]bool   // mu
	abstain    time.Time       // mu; until when this machine does not lead
	trouble    error           // mu; why the store does not answer; nil = it does
	retired    bool            // mu; it was removed
}

var _ sigma.Tree = (*Member)(nil)

// initial is the argument of a machine that joins.
type initial struct {
	id       uint64
	machines []sigma.MachineID
}

const initialVersion = "1"

func (i initial) String() string {
	names := make([]string, len(i.machines))
	for k, m := range i.machines {
		names[k] = string(m)
	}
	return initialVersion + ":" + strconv.FormatUint(i.id, 16) + ":" + strings.Join(names, ",")
}

func parseInitial(text string) (*initial, error) {
	bad := &sigma.Error{Op: "named.parseInitial", Kind: sigma.KindInvalid,
		Msg: fmt.Sprintf("%.200q is not what member-add answers", text)}
	w := strings.Split(text, ":")
	if len(w) != 3 || w[0] != initialVersion || len(text) > 4096 {
		return nil, bad
	}
	id, err := strconv.ParseUint(w[1], 16, 64)
	if err != nil || id == 0 {
		return nil, bad
	}
	i := &initial{id: id}
	for _, name := range strings.Split(w[2], ",") {
		m := sigma.MachineID(name)
		if m.Check() != nil || len(i.machines) == 2*membersMax {
			return nil, bad
		}
		i.machines = append(i.machines, m)
	}
	return i, nil
}

// Open opens the store of a machine that has one or founds one; a machine that joins does so
// in Run. The process must have entered the directory of sockets (EnterSocketDir) if there are
// Peers.
func Open(cfg Config) (*Member, error) {
	const op = "named.Open"
	if err := cfg.Machine.Check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Timing.Patience <= cfg.Timing.Lease || cfg.Timing.Slow < cfg.Timing.Patience {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "a leader would be replaced within its lease")
	}
	m := &Member{cfg: cfg, log: cfg.Log, changed: make(chan struct{}), sessions: map[*tie]bool{}}
	if cfg.External != nil {
		m.cfg.Peers = nil
		m.net = newNetwork(cfg.Machine, nil, cfg.Log)
		store, err := openExternal(m.cfg)
		if err != nil {
			return nil, err
		}
		m.setStore(store)
		return m, nil
	}
	m.net = newNetwork(cfg.Machine, cfg.Peers, cfg.Log)
	if err := restorePending(context.Background(), cfg); err != nil {
		return nil, err
	}
	if cfg.Initial != "" {
		var err error
		if m.initial, err = parseInitial(cfg.Initial); err != nil {
			return nil, err
		}
		if cfg.Peers == nil {
			return nil, sigma.Errorf(op, sigma.KindInvalid, "a machine that joins needs a way to the others")
		}
		if err := m.forgetEarlier(); err != nil {
			return nil, err
		}
	}
	m.joining = m.initial != nil && !m.hasStore()
	if !m.joining {
		own := peerURL(cfg.Machine)
		store, err := startEtcd(cfg, func(c *embed.Config) { founding(c, cfg.Machine, own.String()) })
		if err != nil {
			return nil, err
		}
		m.setStore(store)
	}
	return m, nil
}

// founding is how a first member is configured. One that has its log needs no more.
func founding(c *embed.Config, machine sigma.MachineID, own string) {
	c.Name = string(machine)
	u := peerURL(machine)
	c.AdvertisePeerUrls = c.AdvertisePeerUrls[:0:0]
	c.AdvertisePeerUrls = append(c.AdvertisePeerUrls, u)
	c.InitialCluster = c.Name + "=" + own
	c.InitialClusterToken = clusterToken()
}

// clusterToken makes the members of one store refuse those of another, also of one that was
// restored from the same snapshot. It is used when a store is founded.
func clusterToken() string { return rand.Text() }

// joinedName is the file that says which membership the store is of.
const joinedName = "joined"

func (m *Member) hasStore() bool {
	entries, err := os.ReadDir(filepath.Join(m.cfg.Dir, etcdDir, "member", "wal"))
	return err == nil && len(entries) > 0
}

// forgetEarlier removes the store of a membership that ended, since the machine was removed and is
// added again.
func (m *Member) forgetEarlier() error {
	const op = "named.Open"
	id := strconv.FormatUint(m.initial.id, 16)
	name := filepath.Join(m.cfg.Dir, joinedName)
	if was, err := os.ReadFile(name); err == nil && string(was) == id {
		return nil
	}
	lock, err := lockDir(m.cfg.Dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.RemoveAll(filepath.Join(m.cfg.Dir, etcdDir)); err != nil {
		return sigma.Wrap(op, m.cfg.Dir, err)
	}
	return sigma.Wrap(op, name, os.WriteFile(name, []byte(id), 0o600))
}

func (m *Member) setStore(s *etcdStore) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store = s
	s.alone()
}

// Run is a member until ctx ends, upon which it hands over to another, or its store stops by
// itself, which is the error then. It may be called once.
func (m *Member) Run(ctx context.Context) error {
	if m.opened() == nil {
		if err := m.join(ctx); err != nil {
			return err
		}
	}
	s, outer := m.opened(), ctx
	var tending sync.WaitGroup
	defer tending.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // what waits for the store to answer shall not when it has stopped
		select {
		case <-s.lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	if m.cfg.Peers != nil {
		tending.Go(func() { m.tend(ctx, s) })
		tending.Go(func() { m.noteElections(ctx, s) })
	}
	if m.cfg.External != nil {
		if err := m.claim(ctx, s); err != nil && ctx.Err() == nil {
			return err
		}
	}
	for ctx.Err() == nil {
		if t, ok := m.campaign(ctx, s); ok {
			m.lead(ctx, s, t)
		}
	}
	select {
	case <-s.lost: // never closed for an external etcd
		if c, ok := s.etcd.Server.Cluster().(*membership.RaftCluster); ok && c.IsIDRemoved(s.etcd.Server.MemberID()) {
			m.retire(outer)
			return nil
		}
		return sigma.Errorf("named.Run", sigma.KindUnavailable, "the store of names has stopped")
	default:
		return nil
	}
}

// retire is what a member does that was removed: nothing, until its machine is told to run named no
// more, or as a new member.
func (m *Member) retire(ctx context.Context) {
	m.log.Info("this machine keeps the names no more", "machine", m.cfg.Machine)
	m.net.close()
	m.mu.Lock()
	m.retired = true
	m.changedLocked()
	m.mu.Unlock()
	<-ctx.Done()
}

// Ready waits until a machine that joins is a full member, whose loss the others can bear and who
// helps to bear theirs. Any other machine is ready at once.
func (m *Member) Ready(ctx context.Context) error {
	for m.joining {
		if s := m.opened(); s != nil && m.counts(ctx, s) {
			return nil
		}
		if !retry.Pause(ctx, readyPause) {
			return sigma.Wrap("named.Ready", "", ctx.Err())
		}
	}
	return nil
}

// counts asks the leader whether this member is a full one. It does not know itself: until it has
// its first state it takes all members for such.
func (m *Member) counts(ctx context.Context, s *etcdStore) bool {
	t, err := s.look(ctx, m.cfg.Machine)
	if err != nil || t.machine == "" || t.machine == m.cfg.Machine {
		return err == nil && t.machine == m.cfg.Machine
	}
	ms, err := m.net.members(ctx, t.machine)
	return err == nil && slices.ContainsFunc(ms, func(x remoteMember) bool {
		return x.ID == uint64(s.etcd.Server.MemberID()) && !x.IsLearner
	})
}

const readyPause = 20 * time.Millisecond

// Close ends the member. Run must have returned.
func (m *Member) Close() {
	if s := m.opened(); s != nil {
		s.Close()
	}
	m.net.close()
}

func (m *Member) opened() *etcdStore {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.store
}

const joinPause = 300 * time.Millisecond

// join makes this machine's store part of the others'. It tries until ctx ends.
func (m *Member) join(ctx context.Context) error {
	m.log.Info("joining the store of names", "machine", m.cfg.Machine, "members", m.cfg.Initial)
	for last := ""; ; {
		err := m.joinOnce(ctx)
		if err == nil {
			return nil
		}
		if err.Error() != last {
			last = err.Error()
			m.log.Warn("this machine cannot join the store of names yet", "err", err)
		}
		if !retry.Pause(ctx, joinPause) {
			return nil
		}
	}
}

func (m *Member) joinOnce(ctx context.Context) error {
	const op = "named.join"
	cluster, machines, err := m.askMembers(ctx)
	if err != nil {
		return err
	}
	if err := m.net.reach(machines); err != nil {
		return err
	}
	s, err := startEtcd(m.cfg, func(c *embed.Config) {
		founding(c, m.cfg.Machine, "")
		c.InitialCluster, c.ClusterState = cluster, embed.ClusterStateFlagExisting
	})
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	m.setStore(s)
	return sigma.Wrap(op, "", m.net.serve(ctx, s.etcd.Server))
}

// askMembers asks the others for the configuration of the store, as etcd wants it: all members with
// their URLs.
func (m *Member) askMembers(ctx context.Context) (cluster string, machines []sigma.MachineID, err error) {
	err = errors.New("there is nobody to ask")
	for _, other := range m.initial.machines {
		if other == m.cfg.Machine {
			continue
		}
		var ms []remoteMember
		if ms, err = m.net.members(ctx, other); err != nil {
			continue
		}
		var parts []string
		here := false
		machines = nil
		for _, x := range ms {
			name := machineOfURL(strings.Join(x.PeerURLs, ","))
			if name.Check() != nil {
				err = fmt.Errorf("member %x has the URLs %.200q", x.ID, x.PeerURLs)
				continue
			}
			here = here || x.ID == m.initial.id && name == m.cfg.Machine
			u := peerURL(name)
			parts = append(parts, string(name)+"="+u.String())
			machines = append(machines, name)
		}
		if here && len(parts) == len(ms) {
			return strings.Join(parts, ","), machines, nil
		}
		if err == nil {
			err = fmt.Errorf("machine %s does not know this member", other)
		}
	}
	return "", nil, err
}

// tendPause is between looks at who the members are.
const tendPause = 300 * time.Millisecond

// tend keeps up the ways to the other members, as there are any.
func (m *Member) tend(ctx context.Context, s *etcdStore) {
	for {
		ms := s.etcd.Server.Cluster().Members()
		err := m.net.reach(m.machinesOf(s, ms))
		if err == nil && len(ms) > 1 {
			err = m.net.serve(ctx, s.etcd.Server)
		}
		if err != nil && ctx.Err() == nil {
			m.log.Warn("the other members of the store of names cannot be reached", "err", err)
		}
		if !retry.Pause(ctx, tendPause) {
			return
		}
	}
}

// machineOf is the machine of a member. A store that was founded by an older version has another
// URL for its only member.
func (m *Member) machineOf(s *etcdStore, x *membership.Member) sigma.MachineID {
	if x.ID == s.etcd.Server.MemberID() || len(x.PeerURLs) == 0 {
		return m.cfg.Machine
	}
	return machineOfURL(x.PeerURLs[0])
}

func (m *Member) machinesOf(s *etcdStore, ms []*membership.Member) (out []sigma.MachineID) {
	for _, x := range ms {
		out = append(out, m.machineOf(s, x))
	}
	return out
}

// know notes who leads, for those who ask here.
func (m *Member) know(leader sigma.MachineID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leader != leader {
		m.leader = leader
		m.changedLocked()
	}
}

func (m *Member) changedLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}
