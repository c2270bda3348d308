package mounts

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

const (
	// serveMax is how many clients are served at once. Each has a connection to sigmad of its own,
	// from when it has shown the token, so that none can use up what another needs.
	serveMax = 64
	// attachMax is how long a client that came over TCP may take to show the token.
	attachMax = 10 * time.Second
	// acceptPause is the pause after an accept that failed, for want of descriptors or memory.
	acceptPause = 100 * time.Millisecond
)

// unixPrefix begins an address that is a file.
const unixPrefix = "unix:"

func newServeCommand(a *app) *cobra.Command {
	cmd := cli.Parent("serve", "Serve the realm's tree to programs that know nothing of sigmaOS",
		`Serve the realm's tree by a protocol of others, until ^C. For the programs of this host
"sigma mount" needs no protocol.`, newServe9PCommand(a))
	cmd.Example = `  sudo sigma serve 9p --listen unix:/run/sigma-9p.sock`
	return cmd
}

func newServe9PCommand(a *app) *cobra.Command {
	listen := ""
	cmd := &cobra.Command{
		Use:   "9p --listen ADDRESS [PATH]",
		Short: "Serve PATH of the realm to 9P2000.L clients, until ^C",
		Long: `Serve PATH of the realm (default /) to clients of 9P2000.L, such as the Linux kernel
(mount -t 9p), diod's tools, QEMU and WSL, until ^C. ADDRESS is

  unix:FILE   a socket that only its owner may use (mode 0600, and checked)
  HOST:PORT   TCP. A client shows the token, which is printed, as the name that it attaches
              to (aname). The bytes are neither encrypted nor protected: use it on this
              host, or over a network that you trust

The name and user that a client says it is decide nothing: all act as whoever runs this
command. What is behind endpoints is served too.`,
		Example: `  sudo sigma serve 9p --listen unix:/run/sigma-9p.sock
  sudo sigma serve 9p --listen 127.0.0.1:5640 /ux/~local`,
		Args: cli.Between(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at := "/"
			if len(args) == 1 {
				var err error
				if at, err = cli.PlainPath(args[0]); err != nil {
					return err
				}
			}
			return a.serve9P(cmd.Context(), listen, at)
		},
	}
	cmd.Flags().StringVarP(&listen, "listen", "l", "", "`ADDRESS` to listen on: unix:FILE or HOST:PORT")
	return cmd
}

// gate says who may attach.
type gate struct {
	at    string // the path that is served
	token string // "" = whoever can connect
}

func (a *app) serve9P(ctx context.Context, address, at string) error {
	if address == "" {
		return cli.UsageError(nil, "sigma serve 9p --listen unix:/run/sigma-9p.sock", "--listen is needed")
	}
	if _, _, err := net.SplitHostPort(address); err != nil && !strings.HasPrefix(address, unixPrefix) {
		return cli.UsageError(nil, "write unix:FILE, or HOST:PORT as in 127.0.0.1:5640",
			"the address %.80q to listen on is neither a file nor HOST:PORT", address)
	}
	c, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	_, err = c.Stat(ctx, at)
	c.Close()
	if err != nil {
		return err
	}
	l, err := listen9P(address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	g := gate{at: at}
	said := struct {
		Address string `json:"address"`
		Token   string `json:"token,omitempty"`
	}{Address: l.Addr().String()}
	if l.Addr().Network() == "tcp" {
		g.token = rand.Text()
		said.Token = g.token
	}
	switch {
	case a.JSON:
		err = a.PrintJSON(said)
	case g.token != "":
		_, err = fmt.Fprintf(a.Out, "serving %s of realm %s on %s with token %s\n", at, a.Realm, said.Address, g.token)
	default:
		_, err = fmt.Fprintf(a.Out, "serving %s of realm %s on %s\n", at, a.Realm, said.Address)
	}
	if err != nil {
		l.Close()
		return err
	}
	a.accept9P(ctx, l, g)
	return nil
}

func listen9P(address string) (net.Listener, error) {
	if file, isFile := strings.CutPrefix(address, unixPrefix); isFile {
		if err := removeSocket(file); err != nil {
			return nil, err
		}
		old := unix.Umask(0o177)
		l, err := net.Listen("unix", file)
		unix.Umask(old)
		return l, sigma.Wrap("sigma.listen9P", file, err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &sigma.Error{Op: "sigma.listen9P", Kind: sigma.KindUnavailable,
			Msg: fmt.Sprintf("cannot listen on %.200q", address), Err: err,
			Hint: "write unix:FILE, or HOST:PORT as in 127.0.0.1:5640"}
	}
	return l, nil
}

// removeSocket takes a socket away that nobody listens on any more; anything else of that name
// stays.
func removeSocket(file string) error {
	st, err := os.Lstat(file)
	if err != nil {
		return nil // most likely there is none; else listening says what is wrong
	}
	if st.Mode().Type() != os.ModeSocket {
		return &sigma.Error{Op: "sigma.listen9P", Path: file, Kind: sigma.KindExists, Msg: "is there, and is no socket",
			Hint: "choose another name"}
	}
	if c, err := net.Dial("unix", file); err == nil {
		c.Close()
		return &sigma.Error{Op: "sigma.listen9P", Path: file, Kind: sigma.KindExists,
			Msg: "another program listens there", Hint: "choose another name"}
	}
	return files.HostError(os.Remove(file))
}

// accept9P serves until ctx ends, and then until the last client is gone.
func (a *app) accept9P(ctx context.Context, l net.Listener, g gate) {
	var clients sync.WaitGroup
	defer clients.Wait()
	slots, strangers := make(chan struct{}, serveMax), link.NewStrangers()
	for ctx.Err() == nil {
		c, err := l.Accept()
		if err != nil {
			datadir.Pause(ctx, acceptPause)
			continue
		}
		known := strangers.Admit(c)
		clients.Go(func() {
			defer known()
			if err := a.serveClient(ctx, c, &gated{gate: g, app: a, conn: c, slots: slots, known: known}); err != nil &&
				ctx.Err() == nil {
				a.Remark("client %s: %v", c.RemoteAddr(), err)
			}
		})
	}
}

// serveClient serves one connection, which it owns.
func (a *app) serveClient(ctx context.Context, c net.Conn, g *gated) error {
	defer c.Close()
	if u, ok := c.(*net.UnixConn); ok {
		if err := ownPeer(u); err != nil {
			return err
		}
	} else {
		c.SetDeadline(time.Now().Add(attachMax))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	g.ctx, g.cancel = ctx, cancel
	defer g.close()
	return treeserver.Serve(ctx, session.NewStreamConn(c), treeserver.Config{Tree: g})
}

// ownPeer refuses who is neither this user nor root, should the socket's mode have been changed.
func ownPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || cerr != nil {
		return errors.Join(err, cerr)
	}
	if cred.Uid != 0 && cred.Uid != uint32(os.Getuid()) {
		return &sigma.Error{Op: "sigma.serve9P", Kind: sigma.KindPermission, Msg: fmt.Sprintf("user %d may not connect",
			cred.Uid)}
	}
	return nil
}

// gated is the tree that is served to one client.
type gated struct {
	gate
	app    *app
	conn   net.Conn
	ctx    context.Context // of the connection
	cancel context.CancelFunc
	slots  chan struct{} // a token for each client that is served
	known  func()        // it is no stranger any more

	mu     sync.Mutex
	client *sdk.Client // mu; nil until somebody has attached
}

// open connects to sigmad for a client that may attach.
func (g *gated) open() (*sdk.Client, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.client != nil {
		return g.client, nil
	}
	select {
	case g.slots <- struct{}{}:
	default: // better none than one that waits without knowing why
		return nil, sigma.Errorf("sigma.serve9P", sigma.KindBusy, "%d clients are served, which is the limit", serveMax)
	}
	s, err := g.app.Connect(g.ctx)
	if err != nil {
		<-g.slots
		return nil, err
	}
	g.client = s
	g.known()
	go func() {
		select {
		case <-s.Lost(): // sigmad is gone: a client finds out at once, and connects again
			g.cancel()
		case <-g.ctx.Done():
		}
	}()
	return s, nil
}

// Close ends what open began.
func (g *gated) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.client != nil {
		g.client.Close()
		<-g.slots
	}
}

// Attach gives the root. name is the token where one is needed, and means nothing otherwise.
func (g *gated) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	if g.token != "" && subtle.ConstantTimeCompare([]byte(g.token), []byte(name)) != 1 {
		g.conn.SetReadDeadline(time.Now()) // there is no second guess on a connection
		return nil, sigma.Errorf("sigma.serve9P", sigma.KindPermission, "the name that is attached to is not the token")
	}
	s, err := g.open()
	if err != nil {
		return nil, err
	}
	root, err := resolve.Through{Tree: s.Tree, At: g.at, Objects: objects()}.Attach(ctx, p, "")
	if err == nil {
		g.conn.SetDeadline(time.Time{})
	}
	return root, err
}
