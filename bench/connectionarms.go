package bench

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// The arms of endpoint and dial. On one machine: endpoints with each transport; a UNIX socket
// between two ordinary processes, and between two in cgroups like those of procs (contained); TCP
// on the loopback. Between machines: endpoints of two machines on this host; TCP on the same way,
// veth and a bridge; through a VXLAN between two network namespaces; between two containers on a
// bridge of docker's.

// arm is one way to connect a client to a server.
type arm struct {
	name             string
	network, address string // as the client is told
	listens          string // as the server was told
	server           unix.CPUSet
	spare            bool // it is measured where the scheduler has it only, in fewer blocks, and not the first messages
	// run runs a client to its end; placed is called when it has begun.
	run func(ctx context.Context, args []string, placed func() error) ([]byte, error)
}

func (r *Run) newArms(local string) (a *connections, err error) {
	a = &connections{r: r, local: local, figures: map[figure]series{}}
	a.all, err = processors()
	return a, err
}

// newConnections starts the arms of one machine; own are those of endpoints.
func (r *Run) newConnections(ctx context.Context, own ...string) (a *connections, err error) {
	local, err := r.buildConnection(ctx)
	if err != nil {
		return nil, err
	}
	if a, err = r.newArms(local); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.end()
		}
	}()
	s, err := r.boot(ctx)
	if err != nil {
		return a, err
	}
	a.ends = append(a.ends, s.down)
	path, err := s.install(ctx, local, "connection")
	if err != nil {
		return a, err
	}
	a.at, a.from, a.path = s, s, path
	for _, network := range own {
		if err := a.proc(ctx, s, s, network, network, path); err != nil {
			return a, err
		}
	}
	if err := a.plain(ctx, "unix", "unix", filepath.Join(r.dir, "socket"), nil, nil); err != nil {
		return a, err
	}
	if err := a.contained(ctx); err != nil {
		return a, err
	}
	return a, a.plain(ctx, "tcp", "tcp", "127.0.0.1:0", nil, nil)
}

// proc starts a server as a proc of one machine, whose clients will be procs of another, or of the
// same.
func (a *connections) proc(ctx context.Context, server, client *system, name, network, path string) error {
	address := "/connection-" + network
	ids, err := server.Spawn(ctx, sigma.Descriptor{Program: path, Args: []string{"serve", network, address},
		Start: sigma.StartedByCall, Memory: connectionMemory})
	if err == nil {
		err = server.WaitStart(ctx, ids[0])
	}
	if err != nil {
		return err
	}
	a.arms = append(a.arms, &arm{name: name, network: network, address: address, listens: address, server: a.all,
		run: func(ctx context.Context, args []string, placed func() error) ([]byte, error) {
			return client.outputOf(ctx, sigma.Descriptor{Program: path, Args: args, Memory: connectionMemory}, placed)
		}})
	return nil
}

// plain starts a server as an ordinary process. in and by are what the server and its clients are
// started by: in a cgroup, or in a network namespace.
func (a *connections) plain(ctx context.Context, name, network, listens string, in, by []string) error {
	command := append(slices.Clone(in), a.local, "serve", network, listens)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = a.r.Notes
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	a.ends = append(a.ends, func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	a.arms = append(a.arms, &arm{name: name, network: network, address: strings.TrimSpace(line), listens: listens,
		server: a.all, run: func(ctx context.Context, args []string, placed func() error) ([]byte, error) {
			command := slices.Concat(by, []string{a.local}, args)
			return output(exec.CommandContext(ctx, command[0], command[1:]...), placed)
		}})
	return nil
}

// contained is a UNIX socket between two processes in cgroups of their own, like those of a proc.
func (a *connections) contained(ctx context.Context) error {
	pids, err := commanded("serve", a.arms[0].network, a.arms[0].listens)
	if err != nil || len(pids) == 0 {
		return fmt.Errorf("the server's process is not to be seen: %w", err)
	}
	t, err := newTwins(pids[0], filepath.Base(a.r.dir))
	a.ends = append(a.ends, t.remove)
	if err != nil {
		a.r.note("SKIPPED: contained: %v", err)
		return nil
	}
	return a.plain(ctx, "contained", "unix", filepath.Join(a.r.dir, "socket-contained"), t.enter(0), t.enter(1))
}

// newMachines starts the arms between machines.
func (r *Run) newMachines(ctx context.Context, local string) (a *connections, err error) {
	if a, err = r.newArms(local); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.end()
		}
	}()
	m1, m2, err := r.bootTwo(ctx, "machines")
	a.at, a.from = m1, m2
	if err != nil {
		return a, err
	}
	a.ends = append(a.ends, func() { m2.Close(); m1.down() })
	path, err := m1.install(ctx, local, "connection")
	if err != nil {
		return a, err
	}
	a.path = path
	if err := a.proc(ctx, m1, m2, "sigma", "sigma", path); err != nil {
		return a, err
	}
	if err := a.plain(ctx, "veth", "tcp", "10.77.0.1:0", within(m1.pid), within(m2.pid)); err != nil {
		return a, err
	}
	for name, start := range map[string]func(context.Context) error{"vxlan": a.vxlan, "docker": a.docker} {
		if err := start(ctx); err != nil {
			r.note("SKIPPED: %s: %v", name, err)
		}
	}
	return a, nil
}

// within starts a command in the network of a process.
func within(pid int) []string { return []string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", pid)} }

// vxlan is TCP between two network namespaces that see each other through a VXLAN only, as pods of
// two nodes do.
func (a *connections) vxlan(ctx context.Context) error {
	name := func(i int) string { return fmt.Sprintf("%s-%d", filepath.Base(a.r.dir), i) }
	ip := func(args ...string) error { return do(ctx, append([]string{"ip"}, args...)) }
	for i := range 2 {
		if err := ip("netns", "add", name(i)); err != nil {
			return err
		}
		a.ends = append(a.ends, func() { do(context.Background(), []string{"ip", "netns", "delete", name(i)}) })
	}
	if err := ip("-n", name(0), "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
		name(1)); err != nil {
		return err
	}
	for i := range 2 {
		for _, args := range [][]string{
			{"address", "add", fmt.Sprintf("10.78.0.%d/24", i+1), "dev", "eth0"}, {"link", "set", "eth0", "up"},
			{"link", "add", "vx", "type", "vxlan", "id", "7", "remote", fmt.Sprintf("10.78.0.%d", 2-i), "dstport",
				"4789", "dev", "eth0"},
			{"address", "add", fmt.Sprintf("10.79.0.%d/24", i+1), "dev", "vx"}, {"link", "set", "vx", "up"},
		} {
			if err := ip(append([]string{"-n", name(i)}, args...)...); err != nil {
				return err
			}
		}
	}
	enter := func(i int) []string { return []string{"ip", "netns", "exec", name(i)} }
	return a.plain(ctx, "vxlan", "tcp", "10.79.0.1:0", enter(0), enter(1))
}

// dockerPort is where the server listens in its container.
const dockerPort = "7000"

// docker is TCP between two containers on a bridge of docker's.
func (a *connections) docker(ctx context.Context) error {
	d, err := a.r.startDocker(ctx, a.local)
	if err != nil {
		return err
	}
	a.ends = append(a.ends, d.stop)
	network := filepath.Base(a.r.dir)
	run := func(args ...string) error { return do(ctx, d.command(args...)) }
	if err := run("network", "create", "--driver", "bridge", "--subnet", "10.80.0.0/24", network); err != nil {
		return err
	}
	a.ends = append(a.ends, func() {
		for range 40 { // until the containers have left it
			if do(context.Background(), d.command("network", "rm", network)) == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	a.ends = append(a.ends, func() { do(context.Background(), d.command("kill", "server", "client")) })
	for name, args := range map[string][]string{"server": {"serve", "tcp", "0.0.0.0:" + dockerPort},
		"client": {"serve", "tcp",
			"127.0.0.1:0"}} {
		// clients run in a container that is there: to start one for each says nothing of a
		// connection
		ip := map[string]string{"server": "10.80.0.2", "client": "10.80.0.3"}[name]
		if err := run(append([]string{"run", "--detach", "--rm", "--name", name, "--network", network, "--ip", ip,
			dockerImage, "/start"}, args...)...); err != nil {
			return err
		}
	}
	a.arms = append(a.arms, &arm{name: "docker", network: "tcp", address: "10.80.0.2:" + dockerPort,
		listens: "0.0.0.0:" + dockerPort, server: a.all, run: func(ctx context.Context, args []string,
			placed func() error) ([]byte, error) {
			command := append(d.command("exec", "client", "/start"), args...)
			return output(exec.CommandContext(ctx, command[0], command[1:]...), placed)
		}})
	return nil
}

// bootTwo starts a system of two machines on this host, and connects to each.
func (r *Run) bootTwo(ctx context.Context, dir string, options ...string) (m1, m2 *system, err error) {
	data := filepath.Join(r.dir, dir)
	r.note("booting a system of two machines in %s", data)
	whole := &system{r: r, data: data}
	if err := whole.command(ctx, append([]string{"up", "--detach", "--machines", "2"}, options...)...); err != nil {
		return nil, nil, err
	}
	open := func(i int) *system {
		s := &system{r: r, data: filepath.Join(data, "machines", fmt.Sprintf("m%d", i))}
		if err == nil {
			s.pid, err = s.keeper()
		}
		if err == nil {
			s.Client, err = sdk.Connect(ctx, filepath.Join(s.data, "sigmad", "admin.sock"), realm)
		}
		return s
	}
	err = whole.command(ctx, "realm", "create", realm)
	m1, m2 = open(1), open(2)
	if err != nil {
		whole.down()
		return nil, nil, err
	}
	m1.data = data // so that down ends both
	return m1, m2, nil
}

// do runs a command.
func do(ctx context.Context, command []string) error {
	if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%.120s: %w: %.300s", strings.Join(command, " "), err, out)
	}
	return nil
}
