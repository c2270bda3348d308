// Package member is what a program links to be a member of a fleet (lib/fleet): it asks the
// coordinator whether clients may be sent to it, publishes its endpoint, measures and reports its
// load, and leaves in good order when it is asked to go.
//
// It promises: a member is published when its health check was good, or when no coordinator leads
// for a second. A member that is asked to go fails no request, whatever the protocol: it withdraws
// its name, serves those that had found it, and ends their connections at a point where their
// clients know it. Counting costs a request less than 100 ns and no memory.
//
// A program that no fleet started is a member of the directory Options.Dir. Then nobody is asked,
// and nobody is told the load. Users: procs of realms.
package member

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

const (
	// linger is how long a member serves as before after it has withdrawn its name. Clients' caches
	// of names are 20 ms behind at most; the rest is for a client that has chosen the member and is
	// slow to dial it.
	linger = 200 * time.Millisecond
	// leaveMax bounds what a member that is asked to go spends on its name, which goes with the
	// proc in any case.
	leaveMax = 3 * time.Second
)

// Options says what a member is. The zero value is good for a proc that a fleet started.
type Options struct {
	// Name and Revision are those of the fleet. "" and 0 = those of the environment, which the
	// coordinator sets.
	Name     string
	Revision uint64
	// Dir is the directory to join if no fleet started the program.
	Dir string

	// Snapshot gives the state that a new member begins with. It is called by new members, so only
	// a member that serves calls has one.
	Snapshot func(ctx context.Context) ([]byte, error)
	// Join takes the snapshot of another member before clients are sent to this one; nil if there
	// is no other member. What changes between the snapshot and the publication is the program's
	// matter.
	Join func(ctx context.Context, snapshot []byte) error
	// Ranges is how many ranges the keys of the service are divided into, which members own; 0 =
	// none. All members say the same. Only a member that serves calls has ranges: a call uses one
	// by Use. A member with ranges has more of them than others by one at most.
	Ranges int
	// Gain takes a range before requests use it here. state is what Handoff of the member before
	// gave; nil if nobody had the range, or its member ended and what it had is lost. A range whose
	// Gain fails is tried again and again meanwhile.
	Gain func(ctx context.Context, r Range, state []byte) error
	// Handoff gives the state of a range that moves to another member, and forgets it: requests do
	// not use the range here any more. A state has up to 16 MiB less 65 bytes, and no more than the
	// server's call.Config.MessageMax less one.
	Handoff func(ctx context.Context, r Range, to string) ([]byte, error)
	// Drain is called when the member's name is gone and no new clients come. It still serves those
	// that it has, and stops when Drain has returned.
	Drain func(ctx context.Context) error
}

// host is what a member needs of sigmaOS.
type host interface {
	sigma.Self
	Listen(ctx context.Context, form sigma.ConnForm) (sigma.Listener, error)
	JoinAfter(ctx context.Context, dir string, e sigma.Endpoint, ready func(context.Context) error) (
		leave func(context.Context) error, err error)
	// members gives those who can be dialled in a directory.
	members(ctx context.Context, dir string) (map[string]func(context.Context) (net.Conn, error), error)
	// coordinator gives a new client of the coordinator.
	coordinator() coordinator
}

// coordinator is a fleet.Client.
type coordinator interface {
	Call(ctx context.Context, m *call.Method, arg, reply any) error
	Close() error
}

type realm struct{ *sdk.Client }

func (r realm) members(ctx context.Context, dir string) (map[string]func(context.Context) (net.Conn, error), error) {
	return r.Dialer(dir).Members(ctx)
}

func (r realm) coordinator() coordinator { return fleet.NewClient(r.Client) }

// Member is a program as a member of its fleet. Serve once, by one of the three ways. Safe for
// concurrent use.
type Member struct {
	host host
	opts Options
	dir  string // that clients dial
	arg  fleet.MemberArg
	load meter
	// renew has clients make their connections anew, each when it can be done without failing a
	// request. nil = the server cannot have that done. Set before live.
	renew func()

	ranges *ranges // nil = it has none

	mu     sync.Mutex
	client coordinator // mu; nil = none is open
}

// Open makes a Member. It starts nothing.
func Open(c *sdk.Client, opts Options) (*Member, error) { return open(realm{c}, opts) }

func open(h host, opts Options) (*Member, error) {
	if opts.Name == "" && opts.Revision == 0 {
		opts.Name = os.Getenv(fleet.EnvName)
		opts.Revision, _ = strconv.ParseUint(os.Getenv(fleet.EnvRevision), 10, 63)
	}
	m := &Member{host: h, opts: opts, dir: opts.Dir, arg: fleet.MemberArg{Name: opts.Name, Revision: opts.Revision}}
	m.load.start()
	switch {
	case opts.Name != "":
		m.dir = fleet.Members(opts.Name)
		if err := fleet.CheckName(opts.Name); err != nil {
			return nil, err
		}
		if opts.Revision == 0 {
			return nil, sigma.Errorf("member.Open", sigma.KindInvalid, "the fleet %s has no revision", opts.Name)
		}
	case m.dir == "":
		return nil, &sigma.Error{Op: "member.Open", Kind: sigma.KindInvalid,
			Msg: "no fleet started this program, and it was given no directory to join", Hint: "set Options.Dir"}
	}
	if tree, ok := h.(realmTree); ok && opts.Ranges != 0 {
		var err error
		if m.ranges, err = newRanges(tree, m.dir, &m.opts); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Dir is the directory of the members, which clients dial.
func (m *Member) Dir() string { return m.dir }

// Begin counts a request that begins, and gives what is called when it ends. Both cost some 50 ns.
// ServeHTTP and ServeCalls count by themselves.
func (m *Member) Begin() (end func(failed bool)) { return m.load.begin() }

// QueueAge has age called for each report: how long the oldest request waits.
func (m *Member) QueueAge(age func() time.Duration) { m.load.setQueueAge(age) }

// Serve is the life of a server of any protocol. serve serves what it accepts, and returns when
// stop has been called; stop ends the server in good order: it closes the listener, has clients go
// elsewhere and returns when no request is left, as GracefulStop of gRPC does. nil = the listener
// is closed, and serve returns when its connections have ended.
//
// Serve returns nil when the proc was asked to go, or ctx has ended, and all has been served. The
// proc's status is told by then.
func (m *Member) Serve(ctx context.Context, serve func(net.Listener) error, stop func(context.Context) error) error {
	if m.opts.Snapshot != nil || m.ranges != nil {
		return errNoCalls()
	}
	return m.live(ctx, func(l sigma.Listener) error { return serve(l) },
		func(ctx context.Context, l sigma.Listener) error {
			if stop == nil {
				return l.Close()
			}
			return errors.Join(stop(ctx), l.Close())
		})
}

// live is the life of a server.
func (m *Member) live(ctx context.Context, serve func(sigma.Listener) error,
	stop func(context.Context, sigma.Listener) error) error {
	defer m.hangUp()
	l, err := m.host.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	defer l.Close()
	going, goes := context.WithCancelCause(ctx) // ends when the member is to go
	defer goes(nil)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer goes(nil)
	tasks.Go(func() { goes(asked(m.host.WaitEvict(going))) })
	if m.ranges != nil {
		m.ranges.self = l.Endpoint()
	}
	var served error
	over := make(chan struct{})
	go func() {
		served = serve(l)
		close(over)
		goes(errServed)
	}()

	leave, answered, err := m.enter(going, l.Endpoint())
	if err == nil {
		err = m.host.Started(going)
	}
	if err != nil {
		goes(err)
	}
	entered, ending := err == nil, context.WithoutCancel(ctx)
	if m.arg.Name != "" {
		tasks.Go(func() {
			if entered {
				goes(m.report(going, l.Endpoint(), answered))
			}
			<-going.Done()
			within, cancel := context.WithTimeout(ending, askMax)
			defer cancel()
			m.ask(within, fleet.LeavingMethod, m.arg, nil)
		})
	}
	handed, endRanges := m.ownRanges(ending, going, goes, entered, &tasks)
	defer endRanges()
	<-going.Done()
	why := context.Cause(going)
	if why != errServed {
		<-handed
	}
	err = m.withdraw(ending, leave)
	if why != errServed {
		err = errors.Join(err, stop(ending, l))
	}
	<-over
	endRanges()
	closed := errors.Is(served, net.ErrClosed) || errors.Is(served, http.ErrServerClosed)
	if why == errServed || !closed {
		err = errors.Join(err, served)
	}
	if why != errAsked && why != errUnwanted && why != errServed && ctx.Err() == nil {
		err = errors.Join(err, why)
	}
	if err != nil {
		return err
	}
	return m.host.Exited(ending, sigma.Status{Code: sigma.StatusOK})
}

// ownRanges has a member that has entered own ranges until going ends. handed is closed when others
// have them; until end the member follows who owns them.
func (m *Member) ownRanges(ctx, going context.Context, goes context.CancelCauseFunc, entered bool,
	tasks *sync.WaitGroup) (handed <-chan struct{}, end func()) {
	ctx, end = context.WithCancel(ctx)
	over := make(chan struct{})
	if m.ranges == nil || !entered {
		close(over)
		return over, end
	}
	tasks.Go(func() {
		if err := m.ranges.run(ctx, going, sync.OnceFunc(func() { close(over) })); ctx.Err() == nil {
			goes(err)
		}
	})
	return over, end
}

// Why a member goes.
var (
	errAsked    = errors.New("the proc was asked to go")
	errUnwanted = errors.New("the coordinator does not want the member")
	errServed   = errors.New("the server has ended by itself")
)

// asked is why a member goes whose wait for eviction has ended.
func asked(err error) error {
	if err == nil {
		return errAsked
	}
	return err
}

// withdraw ends the membership: afterwards no new clients come.
func (m *Member) withdraw(ctx context.Context, leave func(context.Context) error) error {
	if leave == nil {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, leaveMax)
	defer cancel()
	for leave(within) != nil && retry.Pause(within, askAgain) {
	}
	retry.Pause(ctx, linger)
	if m.opts.Drain == nil {
		return nil
	}
	return m.opts.Drain(ctx)
}
