//go:build system

package examples

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// loadVariable, in the environment, is for how long servers come and go; the default is short.
const loadVariable = "SIGMA_TEST_LOAD"

func loadTime(t *testing.T) time.Duration {
	text := os.Getenv(loadVariable)
	if text == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", loadVariable, err)
	}
	return d
}

// inFlight is how many requests a client has under way.
const inFlight = 4

// Goal: unmodified net/http (HTTP/1.1 and HTTP/2 without TLS) and grpc-go, and generated code of
// package call, serve by path while members of their directory join, leave and are killed; the only
// requests that fail are those that a killed member had, at most as many as each client has under
// way, and of package call only those that may not be made again.
func TestMembers(t *testing.T) {
	for _, x := range []struct {
		name, server string
		client       []string // program and arguments after the directory and the file
	}{{"http1", "httpserver", []string{"httpclient", "http1"}},
		{"http2", "httpserver", []string{"httpclient", "http2"}}, {"grpc", "grpcserver", []string{"grpcclient"}},
		{"call", "ledgerserver", []string{"ledgerload"}}} {
		t.Run(x.name, func(t *testing.T) {
			s := shared.Get(t)
			d := loadTime(t)
			ctx, cancel := context.WithTimeout(t.Context(), d+3*time.Minute*testenv.Slow())
			defer cancel()
			m := &members{t: t, ctx: ctx, c: s.Connect(ctx, t, sigma.DefaultRealm), dir: "/members/" + x.name,
				killed: map[string]bool{}}
			m.program = s.Install(ctx, t, m.c, example(t, x.server))
			client := s.Install(ctx, t, m.c, example(t, x.client[0]))
			for range 3 {
				m.join()
			}
			until := "/stop-" + x.name
			var clients []sigma.ProcID
			for range 2 {
				clients = append(clients,
					m.spawn(sigma.Descriptor{Program: client, Args: append([]string{m.dir, until}, x.client[1:]...)}))
			}
			rounds := 0
			for end := time.Now().Add(d); rounds < 3 || time.Now().Before(end); rounds++ {
				m.join()
				m.leave(rounds%3 == 2)
			}
			if _, err := m.c.Put(ctx, until, nil, sigma.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, id := range clients {
				m.check(id)
			}
			t.Logf("%d members joined and as many left, %d were killed", rounds, len(m.killed))
			for len(m.ids) > 0 {
				m.leave(false)
			}
			for _, path := range []string{m.dir, until} {
				if err := m.c.RemoveAll(ctx, path); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// members are the servers in a directory.
type members struct {
	t       *testing.T
	ctx     context.Context
	c       *sdk.Client
	dir     string
	program string
	ids     []sigma.ProcID // oldest first
	killed  map[string]bool
}

func (m *members) spawn(d sigma.Descriptor) sigma.ProcID {
	m.t.Helper()
	ids, err := m.c.Spawn(m.ctx, d)
	if err == nil {
		err = m.c.WaitStart(m.ctx, ids[0])
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return ids[0]
}

// join starts a member.
func (m *members) join() {
	m.t.Helper()
	m.ids = append(m.ids, m.spawn(sigma.Descriptor{Program: m.program, Args: []string{m.dir},
		Start: sigma.StartedByCall}))
}

// leave ends the oldest.
func (m *members) leave(kill bool) {
	m.t.Helper()
	id := m.ids[0]
	m.ids = m.ids[1:]
	var err error
	if kill {
		m.killed[string(id)] = true
		err = m.c.Kill(m.ctx, id)
	} else {
		err = m.c.Evict(m.ctx, id, time.Minute)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	st, err := m.c.WaitExit(m.ctx, id)
	if err != nil || st.OK() == kill {
		out, _, _ := m.c.Get(m.ctx, "/proc/"+string(id)+"/stderr")
		m.t.Errorf("%s ended with %+v, %v, killed: %v: %s", id, st, err, kill, out)
	}
}

var failedAt = regexp.MustCompile(`^failed at ([a-z0-9-]+)/?\S*: (.*)`)

// check reads what a client told.
func (m *members) check(id sigma.ProcID) {
	m.t.Helper()
	st, err := m.c.WaitExit(m.ctx, id)
	if err != nil || !st.OK() {
		m.t.Errorf("client ended with %+v, %v", st, err)
	}
	out, _, err := m.c.Get(m.ctx, "/proc/"+string(id)+"/stdout")
	if err != nil {
		m.t.Fatal(err)
	}
	at := map[string]int{}
	answered, failed, lost := -1, 0, 0
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if f := failedAt.FindStringSubmatch(lines.Text()); f == nil {
			fmt.Sscanf(lines.Text(), "%d answered, %d failed, %d lost", &answered, &failed, &lost)
		} else if at[f[1]]++; !m.killed[f[1]] {
			m.t.Errorf("a request to a member that nobody killed failed: %s", lines.Text())
		}
	}
	if answered <= 0 {
		m.t.Errorf("the client says %q", strings.TrimSpace(string(out)))
	}
	for id, n := range at {
		if n > inFlight {
			m.t.Errorf("%d requests failed at %s, which was killed, but no more than %d were under way", n, id,
				inFlight)
		}
	}
	if most := inFlight * len(m.killed); lost > most {
		m.t.Errorf("%d calls are lost, but no more than %d were under way at killed members", lost, most)
	}
	m.t.Logf("%d answered, %d failed, %d lost, by the killed ones %v", answered, failed, lost, at)
}

// Goal: a connection is what net.Conn promises, half closes and deadlines included, and says who is
// at its ends. A Dialer finds servers behind endpoints, directories and links to both, passes dead
// ones over, and says why if there is none.
func TestDialer(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	m := &members{t: t, ctx: ctx, c: c, dir: "/dialer/servers", program: s.Install(ctx, t, c, example(t, "httpserver"))}
	m.join()
	server := m.ids[0]
	text, err := c.ReadLink(ctx, m.dir+"/"+string(server))
	if err != nil {
		t.Fatal(err)
	}
	own, err := sigma.ParseEndpoint(text)
	if err != nil {
		t.Fatal(err)
	}
	dead := own
	dead.ID = "AAAAAAAAAAAAAAAAAAAAAA"
	for _, err := range []error{c.Publish(ctx, m.dir+"/0-dead", dead, 0), c.Publish(ctx, m.dir+"/zz-dead", dead, 0),
		c.Symlink(ctx, "servers", "/dialer/to-directory"),
		c.Symlink(ctx, m.dir+"/"+string(server), "/dialer/to-endpoint"), c.Publish(ctx, "/dialer/dead", dead, 0),
		c.Mkdir(ctx, "/dialer/empty", 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{m.dir, m.dir + "/" + string(server), "/dialer/to-directory", "/dialer/to-endpoint"} {
		d := c.Dialer(path)
		for range 4 { // more than there are members
			conn, err := d.Dial(ctx, "")
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if to, ok := conn.RemoteAddr().(sdk.EndpointAddr); !ok || to.Endpoint != own {
				t.Errorf("%s: the remote address is %v", path, conn.RemoteAddr())
			}
			if from, ok := conn.LocalAddr().(sdk.CallerAddr); !ok || from.Principal != c.Info().Principal {
				t.Errorf("%s: the local address is %v", path, conn.LocalAddr())
			}
			conn.Close()
		}
	}
	for path, want := range map[string]sigma.Kind{"/dialer/nothing": sigma.KindNotFound,
		"/dialer/empty": sigma.KindUnavailable, "/dialer/dead": sigma.KindUnavailable} {
		if _, err := c.Dialer(path).Dial(ctx, ""); sigma.KindOf(err) != want {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	conn, err := c.Dialer(m.dir).DialContext(ctx, "tcp", "server:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echo(t, conn)
	m.leave(false)
	if _, err := c.Dialer(m.dir).Dial(ctx, ""); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("only dead members: %v", err)
	}
	if err := c.RemoveAll(ctx, "/dialer"); err != nil {
		t.Error(err)
	}
}

// echo has a connection to httpserver upgraded and talks over it.
func echo(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Error(err)
	}
	var timeout net.Error
	if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a read after its deadline: %v", err)
	}
	conn.SetReadDeadline(time.Time{})
	const hello = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
	words := strings.Repeat("word", 100_000)
	sent := make(chan error, 1)
	go func() {
		_,
			err := io.WriteString(conn,
			"GET /echo HTTP/1.1\r\nHost: server\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"+words)
		sent <- errors.Join(err, conn.(interface{ CloseWrite() error }).CloseWrite())
	}()
	back, err := io.ReadAll(conn)
	if err != nil || string(back) != hello+words {
		t.Errorf("%d bytes came back, %v, want %d", len(back), err, len(hello+words))
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
