package member

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/atomicfile"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/wire/sigmap"
)

// The names can be in an etcd that an operator runs. Everything above the client is as with the
// embedded one: terms, leases, quorum, compaction. What is different:
//
//	members     control machines are no members of it; who is one stands in the store
//	            (n/member/MACHINE), and each may lead
//	beats       are always needed, since no directory's lock keeps others out
//	system      the store says whose names these are (n/system), and the data directory
//	            remembers it, so that two sigmaOSes never share one, and an emptied etcd is
//	            not taken for a new one
//	operator's  quota, members, defragmentation, alarms, its certificates and backups
//
// All keys are below externalPrefix.

// External is an etcd that somebody else runs.
type External struct {
	sigmap.Etcd
	// Dial connects to the member of that name.
	Dial func(ctx context.Context, name string) (net.Conn, error)
}

const (
	externalPrefix = "sigmaos/"
	systemKey      = leaderPrefix + "system"
	memberPrefix   = leaderPrefix + "member/"
	systemName     = "system" // the file that remembers systemKey
	proposed       = "new "   // begins it while it is not known whether the etcd has it

	// etcd refuses those who ask more often.
	externalAlive    = 5 * time.Second
	externalAliveMax = 3 * time.Second
	externalTries    = 10 // of one request that may be repeated; 25 ms apart
	externalLook     = 3 * time.Second
	claimPause       = 300 * time.Millisecond
)

// errRemoved says that this machine may not lead any more.
var errRemoved = errors.New("this machine keeps the names no more")

// client makes one; it connects when it is used. What troubles it is logged by troubled.
func (x *External) client() (*clientv3.Client, error) {
	const op = "named.External"
	if err := x.Check(); err != nil {
		return nil, err
	}
	tc, err := x.tls()
	if err != nil {
		return nil, err
	}
	scheme := "http://"
	if tc != nil {
		scheme = "https://"
	}
	var endpoints []string
	for _, m := range x.Members {
		endpoints = append(endpoints, scheme+m.Name)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: tc, Logger: zap.NewNop(),
		DialKeepAliveTime: externalAlive, DialKeepAliveTimeout: externalAliveMax,
		MaxCallSendMsgSize: named.CommitBytesMax + 1<<20, MaxUnaryRetries: externalTries,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(x.Dial), grpc.WithNoProxy(),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond,
				Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: externalLook})}})
	if err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	c.KV = namespace.NewKV(c.KV, externalPrefix)
	return c, nil
}

func (x *External) tls() (*tls.Config, error) {
	bad := func(what string, err error) error {
		return &sigma.Error{Op: "named.External", Kind: sigma.KindInvalid, Msg: what, Err: err}
	}
	if x.CA == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !c.RootCAs.AppendCertsFromPEM([]byte(x.CA)) {
		return nil, bad("the authority of etcd's certificates is no certificate in PEM", nil)
	}
	if x.Cert != "" {
		pair, err := tls.X509KeyPair([]byte(x.Cert), []byte(x.Key))
		if err != nil {
			return nil, bad("the certificate for etcd and its key do not fit", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func (x *External) names() string {
	names := make([]string, len(x.Members))
	for i, m := range x.Members {
		names[i] = m.Name
	}
	return strings.Join(names, ",")
}

// openExternal makes a store of it. Nothing is asked yet: it may not be there for long.
func openExternal(cfg Config) (*etcdStore, error) {
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if err := noOther(cfg.Dir); err != nil {
		lock.Close()
		return nil, err
	}
	client, err := cfg.External.client()
	if err != nil {
		lock.Close()
		return nil, err
	}
	s := newStore(nil, client, cfg.Log, make(chan struct{}), lock)
	looking, stop := context.WithCancel(context.Background())
	compacting := s.stop
	s.stop = func() { compacting(); stop() }
	s.work.Go(func() { s.followSpace(looking) })
	s.foreign = func(there string) error {
		_, _, err := cfg.External.whose(cfg.Dir, there)
		return err
	}
	return s, nil
}

// noOther refuses a data directory whose names are elsewhere.
func noOther(dir string) error {
	for name, why := range map[string]string{etcdDir: "has names of its own already",
		RestoreName:      "has a snapshot that waits to be restored",
		RestoreFreshName: "has a snapshot that waits to be restored"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return &sigma.Error{Op: "named.External", Path: dir, Kind: sigma.KindExists,
				Msg: why + ", which do not go into another etcd", Hint: "begin with a fresh DATA"}
		}
	}
	return nil
}

// known is what the data directory remembers of the system.
func known(dir string) (id string, sure bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, systemName))
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	id, isNew := strings.CutPrefix(string(b), proposed)
	return id, !isNew, err
}

func remember(dir, text string) error {
	return atomicfile.Write(filepath.Join(dir, systemName), []byte(text))
}

// whose compares the system that the etcd names ("" = none) with the one that this machine knows.
// fresh means that neither knows any.
func (x *External) whose(dir, there string) (id string, fresh bool, err error) {
	const op = "named.External"
	have, sure, err := known(dir)
	if err != nil {
		return "", false, err
	}
	want := cmp.Or(x.System, have)
	switch {
	case there != "" && there == want:
		return there, false, nil
	case there != "":
		return "", false, &sigma.Error{Op: op, Kind: sigma.KindExists,
			Msg:  fmt.Sprintf("the etcd at %s holds the names of another sigmaOS", x.names()),
			Hint: "each sigmaOS needs an etcd of its own; one that goes on needs its own DATA"}
	case x.System != "" || sure:
		return "", false, &sigma.Error{Op: op, Kind: sigma.KindStale,
			Msg:  fmt.Sprintf("the etcd at %s is empty, but the names of this sigmaOS were in one", x.names()),
			Hint: "is it the right one? Otherwise restore its backup"}
	}
	return want, true, nil
}

// claim makes sure that the names are this system's, as those of a new one are. It tries until it
// is known, or ctx ends.
func (m *Member) claim(ctx context.Context, s *etcdStore) error {
	for {
		err := m.claimOnce(ctx, s)
		if k := sigma.KindOf(err); err == nil || ctx.Err() != nil || k == sigma.KindExists || k == sigma.KindStale ||
			k == sigma.KindInvalid {
			return err
		}
		m.troubled(err)
		if !retry.Pause(ctx, claimPause) {
			return nil
		}
	}
}

func (m *Member) claimOnce(ctx context.Context, s *etcdStore) error {
	x := m.cfg.External
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timing.Quorum)
	defer cancel()
	there, err := s.system(ctx)
	if err != nil {
		return x.explain(err)
	}
	id, fresh, err := x.whose(m.cfg.Dir, there)
	if err != nil {
		return err
	}
	if fresh {
		if id == "" {
			id = rand.Text()
			if err := remember(m.cfg.Dir, proposed+id); err != nil {
				return err
			}
		}
		r, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(systemKey), "=", 0)).
			Then(clientv3.OpPut(systemKey, id), clientv3.OpPut(memberPrefix+string(m.cfg.Machine), "")).Commit()
		if err != nil {
			return x.explain(err)
		}
		if !r.Succeeded {
			return sigma.Errorf("named.External", sigma.KindBusy, "another sigmaOS begins there just now")
		}
	}
	s.claimed = id
	return remember(m.cfg.Dir, id)
}

func (s *etcdStore) system(ctx context.Context) (id string, err error) {
	value, _, _, err := s.Get(ctx, systemKey)
	return string(value), err
}

// checkLimits finds out whether etcd takes what named asks of it. It changes nothing.
func (s *etcdStore) checkLimits(ctx context.Context) error {
	never := clientv3.Compare(clientv3.CreateRevision(systemKey), "=", -1)
	ops := make([]clientv3.Op, named.CommitOpsMax)
	for i := range ops {
		ops[i] = clientv3.OpGet(systemKey)
	}
	_, err := s.client.Txn(ctx).If(never).Then(ops...).Commit()
	if err == nil {
		_, err = s.client.Txn(ctx).If(never).Then(clientv3.OpPut(systemKey,
			strings.Repeat("x", named.CommitBytesMax-4096))).Commit()
	}
	if errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) || err != nil &&
		strings.Contains(err.Error(), "larger than max") {
		return &sigma.Error{Op: "named.External", Kind: sigma.KindUnsupported,
			Msg:  "this etcd takes too little in one transaction",
			Hint: fmt.Sprintf("start it with --max-txn-ops=%d --max-request-bytes=%d", named.CommitOpsMax, named.CommitBytesMax),
			Err:  err}
	}
	return err
}

// explain puts in words why an etcd does not answer.
func (x *External) explain(err error) error {
	if already, ok := errors.AsType[*sigma.Error](err); ok {
		return already
	}
	e := &sigma.Error{Op: "named.External", Kind: sigma.KindUnavailable, Msg: "no etcd answers at " + x.names(),
		Err: err, Hint: "see that it runs, and that --etcd names its client address"}
	switch text := err.Error(); {
	case errors.Is(err, rpctypes.ErrNoSpace):
		e.Kind, e.Msg, e.Hint = sigma.KindNoSpace, "the etcd at "+x.names()+" is full", named.HintFull
	case errors.Is(err, rpctypes.ErrCorrupt):
		e.Kind, e.Msg, e.Hint = sigma.KindOther, "the etcd at "+x.names()+" says that its members differ",
			"see etcd's manual on data corruption"
	case errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrPermissionDenied):
		e.Kind, e.Msg, e.Hint = sigma.KindPermission, "the etcd at "+x.names()+" does not let sigmaOS at its keys",
			"give the user of whom --etcd-cert is a role with all keys from "+externalPrefix+" on"
	case strings.Contains(text, "certificate"), strings.Contains(text, "tls: "):
		e.Kind, e.Msg, e.Hint = sigma.KindPermission,
			"this sigmaOS and the etcd at "+x.names()+" do not trust each other's certificates",
			"see --etcd-ca, --etcd-cert and --etcd-key"
	case strings.Contains(text, "server preface"), strings.Contains(text, "EOF"),
		strings.Contains(text, "connection reset"):
		e.Msg = "what answers at " + x.names() + " is no etcd, or wants certificates"
		e.Hint = "see --etcd, --etcd-ca, --etcd-cert and --etcd-key"
	}
	return e
}

// ProbeExternal tells whether the names of the system whose named has the directory dir can be in
// x, or begin there. It writes nothing.
func ProbeExternal(ctx context.Context, dir string, x *External) error {
	if err := noOther(dir); err != nil {
		return err
	}
	if err := x.Check(); err != nil {
		return err
	}
	var last error
	for _, m := range x.Members {
		if last = x.greet(ctx, m.Name); last == nil {
			break
		}
	}
	if last != nil {
		return x.explain(last)
	}
	client, err := x.client()
	if err != nil {
		return err
	}
	s := newStore(nil, client, slog.New(slog.DiscardHandler), make(chan struct{}), nil)
	defer s.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*externalLook)
	defer cancel()
	there, err := s.system(ctx)
	if err != nil {
		return x.explain(err)
	}
	if _, _, err := x.whose(dir, there); err != nil {
		return err
	}
	if err := s.checkAlarms(ctx); err != nil {
		return x.explain(err)
	}
	return s.checkLimits(ctx)
}

// checkAlarms is the error with which an etcd that has an alarm answers writes.
func (s *etcdStore) checkAlarms(ctx context.Context) error {
	r, err := s.client.AlarmList(ctx)
	if err != nil {
		return err
	}
	if len(r.Alarms) == 0 {
		return nil
	}
	if r.Alarms[0].Alarm == etcdserverpb.AlarmType_NOSPACE {
		return rpctypes.ErrNoSpace
	}
	return rpctypes.ErrCorrupt
}

// greet tells whether a member speaks HTTP/2 (RFC 9113, section 3.4), and trusts this side if it
// has to be. gRPC would try again and again, and say less.
func (x *External) greet(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, externalLook)
	defer cancel()
	c, err := x.Dial(ctx, name)
	if err != nil {
		return err
	}
	defer c.Close()
	if until, ok := ctx.Deadline(); ok {
		c.SetDeadline(until)
	}
	tc, err := x.tls()
	if err != nil {
		return err
	}
	if tc != nil {
		if tc.ServerName, _, err = net.SplitHostPort(name); err != nil {
			return err
		}
		tc.NextProtos = []string{"h2"}
		c = tls.Client(c, tc)
	}
	const settings = 4 // the type of frame with which both sides begin
	if _, err := c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return err
	}
	head := make([]byte, 9)
	if _, err := io.ReadFull(c, head); err != nil {
		return fmt.Errorf("reading server preface: %w", err)
	}
	if head[3] != settings {
		return errors.New("the server preface is of something else")
	}
	return nil
}

// troubled notes why the store does not answer, for who waits for it and, each reason once, for the
// log; nil: it answers.
func (m *Member) troubled(err error) {
	if err != nil && m.cfg.External != nil {
		err = m.cfg.External.explain(err)
	}
	m.mu.Lock()
	was := m.trouble
	m.trouble = err
	m.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		m.log.Warn("this machine cannot lead the names now", "err", err, "hint", sigma.HintOf(err))
	}
}

// quorumLost is quorumLost in words about an external etcd, if there is one.
func (m *Member) quorumLost(op string) error {
	if m.cfg.External == nil {
		return quorumLost(op)
	}
	m.mu.Lock()
	why := m.trouble
	m.mu.Unlock()
	if why == nil {
		why = m.cfg.External.explain(context.DeadlineExceeded)
	}
	return &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
		Msg: "quorum is lost, so names can be neither read nor changed: " + why.Error(), Hint: sigma.HintOf(why)}
}

// externalMembers are the control machines, in order of name.
func (l *leadership) externalMembers(ctx context.Context) (out []sigmap.NamesMember, err error) {
	r, err := l.store.client.Get(ctx, memberPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, &sigma.Error{Op: "named.members", Kind: sigma.KindUnavailable,
			Msg: "the store of names does not answer", Err: err}
	}
	for _, kv := range r.Kvs {
		machine := sigma.MachineID(strings.TrimPrefix(string(kv.Key), memberPrefix))
		out = append(out, sigmap.NamesMember{Machine: machine, Started: true, Leads: machine == l.m.cfg.Machine})
	}
	return out, nil
}

// addExternal lets another machine lead, and says where the names are.
func (l *leadership) addExternal(ctx context.Context, machine sigma.MachineID) (string, error) {
	const op = "named.addMember"
	x := l.m.cfg.External
	for _, m := range x.Members {
		if at, err := netip.ParseAddrPort(m.Address); err == nil && at.Addr().IsLoopback() {
			return "", &sigma.Error{Op: op, Kind: sigma.KindUnsupported,
				Msg:  fmt.Sprintf("the names are in an etcd at %s, which other machines cannot reach", m.Name),
				Hint: "give it an address of a network, and sigma up that one with --etcd"}
		}
	}
	ms, err := l.externalMembers(ctx)
	if err != nil {
		return "", err
	}
	if len(ms) >= membersMax && !slices.ContainsFunc(ms, func(m sigmap.NamesMember) bool {
		return m.Machine == machine
	}) {
		return "", sigma.Errorf(op, sigma.KindBusy, "%d machines keep the names already", membersMax)
	}
	if err := l.writeMark(ctx, op, clientv3.OpPut(memberPrefix+string(machine), "")); err != nil {
		return "", err
	}
	told := x.Etcd
	if told.System, _, err = known(l.m.cfg.Dir); err != nil {
		return "", err
	}
	text, err := json.Marshal(told)
	return sigmap.EtcdPrefix + string(text), err
}

// removeExternal keeps a machine from leading. A leader that shall go hands over first.
func (l *leadership) removeExternal(ctx context.Context, machine sigma.MachineID) error {
	const op = "named.removeMember"
	ms, err := l.externalMembers(ctx)
	if err != nil {
		return err
	}
	switch found := slices.ContainsFunc(ms, func(m sigmap.NamesMember) bool { return m.Machine == machine }); {
	case !found:
		return nil
	case len(ms) == 1:
		return lastMember(op, machine)
	case machine == l.m.cfg.Machine:
		l.resign()
		return handsOver(op, machine)
	}
	return l.writeMark(ctx, op, clientv3.OpDelete(memberPrefix+string(machine)))
}
