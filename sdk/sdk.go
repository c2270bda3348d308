// Package sdk is what programs of sigmaOS use: procs by Open, programs outside by Connect. A Client
// is one realm's tree (sigma.Namespace), its procs (sigma.Procs), and, for a proc, its endpoints
// and itself (sigma.Endpoints, sigma.Self).
//
// It is light on purpose: it starts one goroutine, makes two round trips, and links nothing beyond
// the standard library's net, so that a proc that uses it starts in about the time an empty program
// does (architecture §4).
//
// All methods are safe for concurrent use.
package sdk

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// systemFile is the file descriptor that every proc is born with: its socket to sigmad, and its
// identity.
const systemFile = 3

// Client is a program's connection to sigmaOS.
type Client struct {
	*resolve.Tree
	session *session.Client
	root    sigma.File
	info    sigmap.Info
	rings   *ring.Set
	life    context.Context // ends with Close
	end     context.CancelFunc
	tasks   sync.WaitGroup // that Close waits for

	mu     sync.Mutex
	epoch  uint32                   // mu; of the session, that files are of
	files  map[string]sigma.Caller  // mu; the well-known callable files used so far
	mounts map[*session.Client]bool // mu; sessions with servers behind endpoints; nil once closed
	pools  pools
}

var (
	_ sigma.Namespace = (*Client)(nil)
	_ sigma.Procs     = (*Client)(nil)
	_ sigma.Self      = (*Client)(nil)
	_ sigma.Endpoints = (*Client)(nil)
)

// Open connects a proc to its machine. A program that was not started by sigmaOS gets
// KindUnavailable. It can be called once in a process.
func Open(ctx context.Context) (*Client, error) {
	conn, err := session.FromFile(os.NewFile(systemFile, "sigmad"))
	if err != nil {
		return nil, &sigma.Error{Op: "sdk.Open", Kind: sigma.KindUnavailable, Msg: "this process is not a proc",
			Hint: "start it with: sigma run PROGRAM", Err: err}
	}
	s, err := session.DialSystem(ctx, conn)
	if err != nil {
		return nil, err
	}
	c, err := start(ctx, s, "")
	if err != nil {
		return nil, err
	}
	if text := os.Getenv(transportVariable); text != "" {
		t, err := ring.ParseTransport(text)
		if err != nil {
			c.Close()
			return nil, sigma.Wrap("sdk.Open", transportVariable, err)
		}
		c.UseTransport(t)
	}
	return c, nil
}

// transportVariable, in a proc's environment, forces the transport of its connections as
// UseTransport does, without a change to the program.
const transportVariable = "SIGMA_TRANSPORT"

// Connect connects a program outside to a realm through the admin socket at addr, which only root
// may open. The Client goes on when sigmad dies and is started again (connect.go).
func Connect(ctx context.Context, addr string, realm sigma.RealmID) (*Client, error) {
	return connect(ctx, string(realm), func(ctx context.Context) (*net.UnixConn, error) {
		return dialSocket(ctx, addr)
	})
}

// ConnectAs connects a program outside to the realm that it has a credential of, through the realm
// socket at addr, which every user may open. What the program may do is what the credential's role
// says; the Client ends when it is revoked or expires, and goes on when sigmad dies and is started
// again. KindPermission: it is not good; KindBusy: too many were wrong, or too many programs
// connect; KindUnavailable: nobody answers, or credentials cannot be checked now.
func ConnectAs(ctx context.Context, addr, credential string) (*Client, error) {
	return connect(ctx, "", func(ctx context.Context) (*net.UnixConn, error) { return greet(ctx, addr, credential) })
}

// ConnectBy connects a program that may not open a socket of sigmaOS itself: dial opens one for it,
// with Dial in a process that may, now and after each death of sigmad. With a credential realm is
// empty.
func ConnectBy(ctx context.Context, realm sigma.RealmID, dial func(context.Context) (*net.UnixConn, error)) (*Client,
	error) {
	return connect(ctx, string(realm), dial)
}

// Dial opens the connection that ConnectBy needs: to the admin socket at addr or, with a
// credential, to the realm socket.
func Dial(ctx context.Context, addr, credential string) (*net.UnixConn, error) {
	if credential == "" {
		return dialSocket(ctx, addr)
	}
	return greet(ctx, addr, credential)
}

// greet connects to the realm socket with a credential.
func greet(ctx context.Context, addr, credential string) (*net.UnixConn, error) {
	greeting := sigmap.Greeting(strings.TrimSpace(credential))
	if greeting == nil {
		return nil, sigma.Errorf("sdk.ConnectAs", sigma.KindInvalid, "this is not a credential")
	}
	c, err := dialSocket(ctx, addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	answer := make([]byte, sigmap.GreetingMax+1)
	n := 0
	if _, err = c.Write(greeting); err == nil {
		n, err = c.Read(answer)
	}
	switch {
	case !stop():
		err = sigma.Wrap("sdk.ConnectAs", "", ctx.Err())
	case err != nil || n == 0:
		err = &sigma.Error{Op: "sdk.ConnectAs", Kind: sigma.KindBusy,
			Msg: "sigmaOS closed the connection before it answered", Hint: "try again in a moment", Err: err}
	default:
		err = sigmap.ParseWelcome(answer[:n])
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// pathOnly is Linux's O_PATH: the directory may be one that this user can pass through and not
// list.
const pathOnly = 0x200000

// connectMax is how long a program waits for its turn among all that connect; connectTurn, for how
// long at a time, before it looks whether its context has ended.
const (
	connectMax  = 10 * time.Second
	connectTurn = time.Second
)

// dialSocket connects to a socket of sigmad's. Where too many programs connect it waits for its
// turn, which the kernel gives in order to who waits within connect(2); net's connect would fail
// with EAGAIN.
func dialSocket(ctx context.Context, addr string) (*net.UnixConn, error) {
	dir, err := os.OpenFile(filepath.Dir(addr), pathOnly|syscall.O_DIRECTORY,
		0) // socket paths are limited to 107 bytes; going through the directory makes any path short
	if err != nil {
		return nil, connectError(addr, err)
	}
	defer dir.Close()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, connectError(addr, os.NewSyscallError("socket", err))
	}
	f := os.NewFile(uintptr(fd), addr)
	defer f.Close()
	to := &syscall.SockaddrUnix{Name: filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), filepath.Base(addr))}
	turn := syscall.NsecToTimeval(int64(connectTurn))
	if err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &turn); err != nil {
		return nil, connectError(addr, os.NewSyscallError("setsockopt", err))
	}
	for until := time.Now().Add(connectMax); ; {
		err = syscall.Connect(fd, to)
		if err == syscall.EINTR || err == syscall.EAGAIN && ctx.Err() == nil && time.Now().Before(until) {
			continue
		}
		break
	}
	if err != nil {
		return nil, connectError(addr, errors.Join(os.NewSyscallError("connect", err), ctx.Err()))
	}
	if err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &syscall.Timeval{}); err != nil {
		return nil, connectError(addr, os.NewSyscallError("setsockopt", err))
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, connectError(addr, err)
	}
	return c.(*net.UnixConn), nil
}

func connectError(addr string, err error) error {
	e := &sigma.Error{Op: "sdk.Connect", Kind: sigma.KindUnavailable, Msg: "no sigmaOS answers at " + addr,
		Hint: "start it with: sigma up --detach", Err: err}
	switch {
	case errors.Is(err, os.ErrPermission):
		e.Kind, e.Msg, e.Hint = sigma.KindPermission, "may not use "+addr,
			"run as root, or with sudo; or name a credential of a realm with: --credential FILE"
	case errors.Is(err, syscall.EAGAIN):
		e.Kind, e.Msg, e.Hint = sigma.KindBusy,
			"sigmaOS at "+addr+" had no turn for this program: too many connect at once",
			"try again in a moment; if it lasts, look which programs of this host connect to it: ss -xp"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		e.Kind, e.Msg, e.Hint = sigma.KindBusy, "there are too many files open to connect to sigmaOS",
			"close some, or raise the limit: ulimit -n"
	}
	return e
}

func start(ctx context.Context, s *session.Client, realm string) (*Client, error) {
	var err error
	c := &Client{session: s, files: map[string]sigma.Caller{}, mounts: map[*session.Client]bool{}}
	c.life, c.end = context.WithCancel(context.Background())
	c.rings = ring.NewSet(ring.Config{Claim: c.claimRing, Release: c.releaseRing, Meter: c.claimMeter})
	for epoch := ^uint32(0); epoch != s.Epoch(); { // once more if sigmad is being replaced just now
		epoch = s.Epoch()
		if c.root, err = s.Attach(ctx, realm); err == nil {
			c.info, err = sigmap.CallInfo.Ask(ctx, file{c, sigmap.FileSelf}, sigmap.None{})
		}
		if err == nil {
			break
		}
	}
	if err != nil {
		c.end()
		s.Close()
		return nil, err
	}
	c.Tree = resolve.New(resolve.Config{Root: c.root, Done: s.Done(), Epoch: s.Epoch,
		Machine: c.info.Principal.Machine, Dial: c.mount})
	return c, nil
}

// Close ends the connection, and those to servers whose trees were walked through. Listeners and
// connections that were handed out live on.
func (c *Client) Close() {
	c.end()
	c.pools.close()
	c.session.Close()
	c.rings.Close()
	c.mu.Lock()
	mounts := c.mounts
	c.mounts = nil
	c.mu.Unlock()
	for s := range mounts {
		s.Close()
	}
	c.tasks.Wait()
}

// begun starts a task that ends with the Client, and reports whether that is open.
func (c *Client) begun(task func(context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mounts == nil {
		return false
	}
	c.tasks.Go(func() { task(c.life) })
	return true
}

// Done is closed when the connection has ended for good: by Close, or because sigmaOS was stopped,
// the realm removed or the credential revoked. It stays open when sigmad dies and is started again
// (Lost).
func (c *Client) Done() <-chan struct{} { return c.session.Done() }

// Lost is closed when the sigmad that the Client speaks to now is gone. Files that were opened with
// it cannot be used any more; the Client goes on with the next sigmad, for which Lost gives another
// channel.
func (c *Client) Lost() <-chan struct{} { return c.session.Lost() }

// Info tells who the program is: its realm, its proc (empty outside) and machine.
func (c *Client) Info() sigmap.Info { return c.info }

// Root returns the root handle of the tree; it stays the Client's.
func (c *Client) Root() sigma.File { return c.root }

// file is a well-known file, to be called.
type file struct {
	c    *Client
	name string
}

// Call implements sigma.Caller.
func (f file) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	at, err := f.c.wellKnown(ctx, f.name)
	if err != nil {
		return nil, nil, err
	}
	return at.Call(ctx, method, payload, files)
}

// endpoints is /sys/endpoints. It is called for each connection, and costs no allocation.
type endpoints struct{ c *Client }

// Call implements sigma.Caller.
func (e endpoints) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	return file{e.c, sigmap.FileEndpoints}.Call(ctx, method, payload, files)
}

// waiting is file for a request that does nothing but wait: it is made again, as often as sigmad
// dies meanwhile and is started again.
type waiting struct{ file }

// Call implements sigma.Caller.
func (w waiting) Call(ctx context.Context, method string, payload []byte, _ []*os.File) ([]byte, []*os.File, error) {
	c := w.c
	for again := false; ; again = true {
		epoch := c.session.Epoch()
		reply, files, err := w.file.Call(ctx, method, payload, nil)
		switch kind := sigma.KindOf(err); {
		case err == nil:
		case kind == sigma.KindLost && c.session.Epoch() != epoch:
			continue
		case kind == sigma.KindNotFound && again:
			err = &sigma.Error{Op: "sdk.Client", Kind: sigma.KindLost,
				Msg:  "sigmad was started again, and does not know the proc any more",
				Hint: "whether it ran is not known: start it again if that does no harm", Err: err}
		}
		return reply, files, err
	}
}

func (c *Client) wellKnown(ctx context.Context, name string) (sigma.Caller, error) {
	epoch := c.session.Epoch()
	c.mu.Lock()
	fresh := c.epoch != epoch
	if fresh { // sigmad died and was started again
		c.epoch = epoch
		clear(c.files)
	}
	f := c.files[name]
	c.mu.Unlock()
	if fresh && c.rings != nil {
		c.rings.Renew()
	}
	if f != nil {
		return f, nil
	}
	file, _, err := c.root.Walk(ctx, []string{"sys", name})
	if err != nil {
		return nil, err
	}
	f, ok := file.(sigma.Caller)
	if !ok {
		if file != nil {
			file.Close()
		}
		return nil, sigma.PathError("sdk.Client", sigma.KindNotFound, sigma.JoinPath("sys", name))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.files[name]; first != nil {
		file.Close()
		return first, nil
	}
	if c.epoch == epoch {
		c.files[name] = f
	}
	return f, nil
}

// Spawn implements sigma.Procs. All descriptors together must fit one message (60 KiB). Programs
// and targets of views are paths of this program, with its mounts.
func (c *Client) Spawn(ctx context.Context, ds ...sigma.Descriptor) (ids []sigma.ProcID, err error) {
	ds = slices.Clone(ds)
	for i := range ds {
		d := &ds[i]
		if err := d.Check(); err != nil {
			return nil, err
		}
		d.Program, d.View = c.Real(d.Program), slices.Clone(d.View)
		for j := range d.View {
			d.View[j].Target = c.Real(d.View[j].Target)
		}
	}
	return sigmap.CallSpawn.Ask(ctx, file{c, sigmap.FileProcs}, ds)
}

// WaitStart implements sigma.Procs. It goes on when sigmad is started again; KindLost: the proc is
// gone by that.
func (c *Client) WaitStart(ctx context.Context, id sigma.ProcID) error {
	return sigmap.CallWaitStart.Tell(ctx, waiting{file{c, sigmap.FileProcs}}, id)
}

// WaitExit implements sigma.Procs. It goes on when sigmad is started again; KindLost: what became
// of the proc is not known any more.
func (c *Client) WaitExit(ctx context.Context, id sigma.ProcID) (s sigma.Status, err error) {
	return sigmap.CallWaitExit.Ask(ctx, waiting{file{c, sigmap.FileProcs}}, id)
}

// Evict implements sigma.Procs.
func (c *Client) Evict(ctx context.Context, id sigma.ProcID, grace time.Duration) error {
	return sigmap.CallEvict.Tell(ctx, file{c, sigmap.FileProcs}, sigmap.Eviction{ID: id, Grace: grace})
}

// Kill implements sigma.Procs.
func (c *Client) Kill(ctx context.Context, id sigma.ProcID) error {
	return sigmap.CallKill.Tell(ctx, file{c, sigmap.FileProcs}, id)
}

// Freeze implements sigma.Procs.
func (c *Client) Freeze(ctx context.Context, id sigma.ProcID) error {
	return sigmap.CallFreeze.Tell(ctx, file{c, sigmap.FileProcs}, id)
}

// Thaw implements sigma.Procs.
func (c *Client) Thaw(ctx context.Context, id sigma.ProcID) error {
	return sigmap.CallThaw.Tell(ctx, file{c, sigmap.FileProcs}, id)
}

// List implements sigma.Procs.
func (c *Client) List(ctx context.Context, all bool) ([]sigma.ProcInfo, error) {
	var out []sigma.ProcInfo
	var page sigmap.ProcsPage
	for more := true; more; more = page.More && len(page.Procs) > 0 {
		var err error
		if page, err = sigmap.CallListProcs.Ask(ctx, file{c, sigmap.FileProcs}, sigmap.ProcsAfter{All: all, At: page.At,
			After: page.After}); err != nil {
			return nil, err
		}
		out = append(out, page.Procs...)
	}
	slices.SortStableFunc(out, func(a, b sigma.ProcInfo) int {
		return a.Times.Spawned.Compare(b.Times.Spawned)
	}) // they come by machine
	return out, nil
}

// usagePage procs are asked about in one call.
const usagePage = 256

// Usage tells what procs of the realm consume now, or consumed, in order. It is for the provider's
// programs and those with a credential; procs get KindPermission.
func (c *Client) Usage(ctx context.Context, ids ...sigma.ProcID) ([]sigma.Usage, error) {
	out := make([]sigma.Usage, 0, len(ids))
	for page := range slices.Chunk(ids, usagePage) {
		us, err := sigmap.CallProcsUsage.Ask(ctx, file{c, sigmap.FileProcs}, page)
		if err == nil && len(us) != len(page) {
			err = sigma.Errorf("sdk.Usage", sigma.KindInvalid, "%d answers to %d questions", len(us), len(page))
		}
		if err != nil {
			return nil, err
		}
		out = append(out, us...)
	}
	return out, nil
}

// Caps tells what a proc may reach. It is for the provider's programs, and for a proc about itself;
// others get KindPermission.
func (c *Client) Caps(ctx context.Context, id sigma.ProcID) (caps sigmap.Caps, err error) {
	return sigmap.CallCaps.Ask(ctx, file{c, sigmap.FileProcs}, id)
}

// ServicesUsage tells what the services use, in the order of Services.
func (c *Client) ServicesUsage(ctx context.Context) (us []sigma.Usage, err error) {
	return sigmap.CallServicesUsage.Ask(ctx, file{c, sigmap.FileMachine}, sigmap.None{})
}

// Started implements sigma.Self.
func (c *Client) Started(ctx context.Context) error {
	return sigmap.CallStarted.Tell(ctx, file{c, sigmap.FileSelf}, sigmap.None{})
}

// Exited implements sigma.Self.
func (c *Client) Exited(ctx context.Context, s sigma.Status) error {
	return sigmap.CallExited.Tell(ctx, file{c, sigmap.FileSelf}, s)
}

// WaitEvict implements sigma.Self. It goes on when sigmad is started again, so an error is no word
// to go: it says that ctx or the connection has ended.
func (c *Client) WaitEvict(ctx context.Context) error {
	return sigmap.CallWaitEvict.Tell(ctx, waiting{file{c, sigmap.FileSelf}}, sigmap.None{})
}

// Realms is for the provider's programs; others get KindPermission.
func (c *Client) Realms() sigma.Realms { return realms{c} }

type realms struct{ c *Client }

func (r realms) at() sigma.Caller { return file{r.c, sigmap.FileRealms} }

func (r realms) Create(ctx context.Context, id sigma.RealmID) error {
	return sigmap.CallCreateRealm.Tell(ctx, r.at(), id)
}

func (r realms) Remove(ctx context.Context, id sigma.RealmID) error {
	return sigmap.CallRemoveRealm.Tell(ctx, r.at(), id)
}

func (r realms) SetShares(ctx context.Context, id sigma.RealmID, shares uint32) error {
	return sigmap.CallSetShares.Tell(ctx, r.at(), sigmap.RealmShares{Realm: id, Shares: shares})
}

func (r realms) SetLimits(ctx context.Context, id sigma.RealmID, limits sigma.RealmLimits) error {
	return sigmap.CallSetLimits.Tell(ctx, r.at(), sigmap.LimitsOfRealm{Realm: id, Limits: limits})
}

func (r realms) List(ctx context.Context) ([]sigma.RealmInfo, error) {
	return sigmap.ListRealms(ctx, r.at())
}

// Register has a proc of the realm kept running, as its policy says, until Unregister. KindExists:
// there is one of that name, which was not removed. /sys/init lists them.
func (c *Client) Register(ctx context.Context, r sigma.Registration) error {
	return c.register(ctx, r, false)
}

// Replace is Register that takes the place of what is registered under the name, if anything is:
// the proc of that is asked to go, and killed if it does not, and the new one is started when it
// has ended.
func (c *Client) Replace(ctx context.Context, r sigma.Registration) error {
	return c.register(ctx, r, true)
}

func (c *Client) register(ctx context.Context, r sigma.Registration, replace bool) error {
	if err := r.Check(); err != nil {
		return err
	}
	d := &r.Descriptor
	d.Program, d.View = c.Real(d.Program), slices.Clone(d.View)
	for i := range d.View {
		d.View[i].Target = c.Real(d.View[i].Target)
	}
	return sigmap.CallInitAdd.Tell(ctx, file{c, sigmap.FileInit}, sigmap.InitAdd{Registration: r, Replace: replace})
}

// Restart ends the proc of a registration and starts another, even if the policy allows no more
// starts or its pause has not passed. The proc is asked to end and killed if it does not. Restart
// returns when the request is noted, before the proc has ended.
func (c *Client) Restart(ctx context.Context, name string) error {
	return sigmap.CallInitRestart.Tell(ctx, file{c, sigmap.FileInit}, name)
}

// Unregister ends the proc of a registration and forgets the registration when the proc has ended.
// The proc is asked to end and killed if it does not. Unregister returns when the request is noted,
// before the proc has ended.
func (c *Client) Unregister(ctx context.Context, name string) error {
	return sigmap.CallInitRemove.Tell(ctx, file{c, sigmap.FileInit}, name)
}

// Events tells what happened lately on all machines after a position (report.Cursor as text; "" =
// the oldest that is remembered), oldest first, as JSON lines (report.Event): a page, or nothing if
// there is nothing new. A tenant is told of its realm.
func (c *Client) Events(ctx context.Context, after string) ([]byte, error) {
	return sigmap.CallEvents.Ask(ctx, file{c, sigmap.FileEvents}, after)
}

// Services tells what runs on the machine besides procs.
func (c *Client) Services(ctx context.Context) ([]sigmap.Service, error) {
	return sigmap.CallStatus.Ask(ctx, file{c, sigmap.FileMachine}, sigmap.None{})
}

// SetServer tells the machine where the server of a realm's database is, an IP address and a port;
// "" = it has none any more. It is for the provider's programs.
func (c *Client) SetServer(ctx context.Context, realm sigma.RealmID, name, address string) error {
	return sigmap.CallServer.Tell(ctx, file{c, sigmap.FileMachine}, sigmap.ServerAt{
		ServerName: sigmap.ServerName{Realm: realm, Name: name}, Address: address})
}

// SetStore has the objects of a realm, or with the system's of all realms that have no store of
// their own, be kept in a store of S3's kind: text tells s3d of it (s3/store.Store as JSON; "" = on
// the local disk again), and addresses, IP addresses with a port, are where it is. It is for the
// provider's programs. Open objects of all realms are lost.
func (c *Client) SetStore(ctx context.Context, realm sigma.RealmID, text string, addresses []string) error {
	return sigmap.CallSetStore.Tell(ctx, file{c, sigmap.FileMachine}, sigmap.StoreAt{
		UseStore: sigmap.UseStore{Realm: realm, Text: text}, Addresses: addresses})
}

// Stores lists the stores that were set, after that of a realm, as JSON (s3/store.Info); ask has
// each asked how it is. It is for the provider's programs.
func (c *Client) Stores(ctx context.Context, after sigma.RealmID, ask bool) ([]byte, error) {
	return sigmap.CallStores.Ask(ctx, file{c, sigmap.FileMachine}, sigmap.StoresAsk{After: after, Ask: ask})
}

// Leave says that this machine is going to be stopped: for some seconds from now on it takes no new
// procs. With evict those that run here are asked to go, too. It returns how many run, and some of
// them. Only the admin socket may.
func (c *Client) Leave(ctx context.Context, evict bool) (n uint32, some []sigma.ProcInfo, err error) {
	l, err := sigmap.CallLeave.Ask(ctx, file{c, sigmap.FileMachine}, evict)
	return l.Running, l.Some, err
}

// Down stops sigmaOS on this machine, when the procs that run here have had their grace, or now.
// Only the admin socket may.
func (c *Client) Down(ctx context.Context, now bool) error {
	return sigmap.CallDown.Tell(ctx, file{c, sigmap.FileMachine}, now)
}
