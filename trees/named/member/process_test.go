package member

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// The test program is also a member: so that one can be killed as a machine is, without a moment to
// put anything in order.

const memberEnv = "SIGMA_NAMED_TEST_MEMBER"

// memberArgs is what such a process is told.
type memberArgs struct {
	Machine sigma.MachineID
	Dir     string
	Initial string
	Switch  string // directory of the sockets between members, which the test relays
}

func TestMain(m *testing.M) {
	if text := os.Getenv(memberEnv); text != "" {
		os.Exit(memberMain(text))
	}
	os.Exit(m.Run())
}

func memberMain(text string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var a memberArgs
	err := json.Unmarshal([]byte(text), &a)
	if err == nil {
		err = runMember(a, log.With("machine", a.Machine))
	}
	if err != nil {
		log.Error("member ends", "machine", a.Machine, "err", err)
		return 1
	}
	return 0
}

func runMember(a memberArgs, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := EnterSocketDir(a.Dir); err != nil {
		return err
	}
	m, err := Open(Config{Dir: a.Dir, Config: named.Config{Log: log}, Machine: a.Machine, Initial: a.Initial,
		Peers: switchPeers{a}})
	if err != nil {
		return err
	}
	defer m.Close()
	name := treeSocket(a.Switch, a.Machine)
	os.Remove(name)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				p := sigma.Principal{Realm: sigma.SystemRealm, Machine: "client", System: true}
				ctx, done, err := m.Session(context.Background(), p)
				if err != nil {
					c.Close()
					return
				}
				defer done()
				treeserver.Serve(ctx, session.NewPacketConn(c, false), treeserver.Config{Tree: m, Principal: p})
			}()
		}
	}()
	go func() { // the test holds the other end, and may end without a word
		io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	return m.Run(ctx)
}

func treeSocket(dir string, m sigma.MachineID) string { return filepath.Join(dir, string(m)+".tree") }
func peerSocket(dir string, m sigma.MachineID) string { return filepath.Join(dir, string(m)+".peer") }
func wireSocket(dir string, from, to sigma.MachineID) string {
	return filepath.Join(dir, string(from)+"-"+string(to)+".wire")
}

// switchPeers reaches others over sockets that the test relays.
type switchPeers struct{ a memberArgs }

func (s switchPeers) Dial(ctx context.Context, m sigma.MachineID) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", wireSocket(s.a.Switch, s.a.Machine, m))
}

func (s switchPeers) Listen(context.Context) (sigma.Listener, error) {
	name := peerSocket(s.a.Switch, s.a.Machine)
	os.Remove(name)
	l, err := net.Listen("unix", name)
	if err != nil {
		return nil, err
	}
	return peerListener{l}, nil
}

type peerListener struct{ net.Listener }

func (peerListener) Endpoint() sigma.Endpoint { return sigma.Endpoint{} }

// AcceptFrom learns from the relay's first line who dials.
func (l peerListener) AcceptFrom(context.Context) (net.Conn, sigma.Principal, error) {
	c, err := l.Accept()
	if err != nil {
		return nil, sigma.Principal{}, err
	}
	c.SetReadDeadline(time.Now().Add(time.Second))
	var line strings.Builder
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil || b[0] == '\n' || line.Len() > 99 {
			break
		}
		line.WriteByte(b[0])
	}
	c.SetReadDeadline(time.Time{})
	return c, sigma.Principal{Realm: sigma.SystemRealm, Machine: sigma.MachineID(line.String()), System: true}, nil
}
