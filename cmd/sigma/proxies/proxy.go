// Package proxies lets programs of this host that know no endpoints reach services of a realm.
package proxies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const (
	// connectionsDefault bounds connections: each has two descriptors, of 1,024 that programs have
	// by default.
	connectionsDefault = 400
	connectionsMost    = 100_000
	// dialMax is how long the service has to take a connection.
	dialMax = 10 * time.Second
	// acceptPause is the pause after an accept that failed, for want of descriptors or memory.
	acceptPause = 100 * time.Millisecond
)

// proxy relays connections of this host to a service.
type proxy struct {
	*cli.App
	listen      string
	connections int
}

// Command is "sigma proxy".
func Command(base *cli.App) *cobra.Command {
	p := &proxy{App: base}
	cmd := &cobra.Command{
		Use:   "proxy TARGET [--listen ADDRESS]",
		Short: "Let programs of this host connect to a service of the realm",
		Long: `Listen at an address of the loopback, and relay each TCP connection to TARGET: the path of an
endpoint, a directory of them, or the name of a fleet. Of several members one is chosen for each
connection, by the directory's policy. It prints the address, and ends at SIGINT or SIGTERM, with
the connections.

Whoever may connect to the address acts as this command does: every user of this host.`,
		Example: "  sudo sigma proxy cache --listen 127.0.0.1:6379 &\n  redis-cli -p 6379 ping",
		Args:    cli.Between(1, 1), ValidArgsFunction: base.Complete,
		RunE: base.InRealm(p.run),
	}
	f := cmd.Flags()
	f.StringVar(&p.listen, "listen", "127.0.0.1:0", "`ADDRESS` of the loopback, HOST:PORT; port 0 is a free one")
	f.IntVar(&p.connections, "connections", connectionsDefault, "`N` connections at a time at most; more are closed")
	return cmd
}

// targetOf gives the path of a target: a fleet's name has no slash.
func targetOf(word string) (string, error) {
	if !strings.Contains(word, "/") {
		if err := fleet.CheckName(word); err != nil {
			return "", err
		}
		return fleet.Members(word), nil
	}
	return cli.CleanPath(word)
}

func (p *proxy) run(ctx context.Context, c *sdk.Client, args []string) error {
	path, err := targetOf(args[0])
	if err != nil {
		return err
	}
	if p.connections < 1 || p.connections > connectionsMost {
		return cli.UsageError(nil, "", "--connections is %d, but must be from 1 to %d", p.connections, connectionsMost)
	}
	address, err := netip.ParseAddrPort(p.listen)
	if err != nil || !address.Addr().IsLoopback() {
		return cli.UsageError(nil, "write for example 127.0.0.1:6379", "--listen %.100q is no address of the loopback",
			p.listen)
	}
	if _, err := c.Lstat(ctx, path); err != nil {
		var e *sigma.Error
		if errors.As(err, &e) && e.Kind == sigma.KindNotFound && e.Hint == "" {
			return &sigma.Error{Op: "sigma.proxy", Path: path, Kind: sigma.KindNotFound,
				Msg: "there is no service", Hint: "sigma fleet ls lists fleets; an endpoint is given by its path"}
		}
		return err
	}
	if err := cli.CheckFree(address); err != nil && address.Port() != 0 {
		return err
	}
	l, err := net.Listen("tcp", p.listen)
	if err != nil {
		return sigma.Wrap("sigma.proxy", p.listen, err)
	}
	fmt.Fprintln(p.Out, l.Addr())
	d := c.Dialer(path)
	r := relay{max: p.connections, dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, "") },
		failed: func(err error) { p.Remark("a connection failed: %v", err) }}
	return r.serve(ctx, l)
}

// relay connects who comes with a service.
type relay struct {
	max    int
	dial   func(context.Context) (net.Conn, error)
	failed func(error) // is told why a connection was not made, once in tellEvery; may be called at the same time

	mu     sync.Mutex
	told   time.Time // mu; when failed was called last
	untold int       // mu; failures since
}

// tellEvery bounds the lines of a proxy that many programs try to use in vain.
const tellEvery = time.Second

// tell reports a failure, unless another one was reported just now.
func (r *relay) tell(err error) {
	r.mu.Lock()
	now := time.Now()
	if now.Sub(r.told) < tellEvery {
		r.untold++
		r.mu.Unlock()
		return
	}
	untold := r.untold
	r.told, r.untold = now, 0
	r.mu.Unlock()
	if untold > 0 {
		err = fmt.Errorf("%w (and %d more before)", err, untold)
	}
	r.failed(err)
}

// serve serves until ctx ends, and then ends all connections.
func (r *relay) serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	room := make(chan struct{}, r.max)
	for {
		nc, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				nc.Close()
			}
			return ctx.Err()
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			r.tell(err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		select {
		case room <- struct{}{}:
			tasks.Go(func() {
				defer func() { <-room }()
				r.connect(ctx, nc)
			})
		default:
			nc.Close()
			r.tell(&sigma.Error{Op: "sigma.proxy", Kind: sigma.KindBusy,
				Msg: fmt.Sprintf("there are %d connections already", r.max), Hint: "--connections allows more"})
		}
	}
}

// connect relays one connection until both sides have ended it, or one is broken.
func (r *relay) connect(ctx context.Context, client net.Conn) {
	defer client.Close()
	within, cancel := context.WithTimeout(ctx, dialMax)
	service, err := r.dial(within)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			r.tell(err)
		}
		return
	}
	defer service.Close()
	stop := context.AfterFunc(ctx, func() {
		client.Close()
		service.Close()
	})
	defer stop()
	var back sync.WaitGroup
	back.Go(func() { pass(client, service) })
	pass(service, client)
	back.Wait()
}

// pass copies from one side to the other until the first has said all, and then tells the second
// so. If that is broken, the first is ended too, since nobody hears it any more.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		to.Close()
		from.Close()
	}
}
