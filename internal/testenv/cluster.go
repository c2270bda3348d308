package testenv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/netlab"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Kind is what the machines of a Cluster are.
type Kind string

// The kinds.
const (
	// Namespaces are real systems, founded and joined by the commands that people use, each in a
	// network namespace of a netlab.Lab: all faults are possible. It is the default.
	Namespaces Kind = "namespaces"
	// Local is what "sigma up --machines N" makes. The network between its machines is the system's
	// own, so no fault of it is possible.
	Local Kind = "local"
)

// MachinePort is where the machines of a Cluster of kind Namespaces listen.
const MachinePort = 7700

// ClusterOptions say what machines to start. The zero value is one machine.
type ClusterOptions struct {
	Kind     Kind
	Machines int             // 0 = 1
	Control  int             // how many of them are control machines; 0 = 1
	Realms   []sigma.RealmID // made besides sigma.DefaultRealm
	Seed     uint64          // of the network's losses
	CPU      int             // cores that each machine offers; 0 = all of the host
	Memory   sigma.Bytes     // memory that each machine offers; 0 = all of the host
	// size of a disk of each machine's own, in memory; 0 = all share the host's. Not of kind Local
	Disk   sigma.Bytes
	Weaken bool // as in Options
	// Unstarted: the test starts it itself, on Data, and then calls Started. Of kind Local only.
	Unstarted bool
	Bin       string // directory of the programs; "" = as for every test
}

// Cluster is one system of several machines, for one test. What it does to the machines is noted
// with the time in a log, which is kept with those of the machines if the test fails. Its methods
// are safe for concurrent use, except those that start or end the same machine.
type Cluster struct {
	Lab *netlab.Lab // nil unless of kind Namespaces

	o        ClusterOptions
	dir      string
	bin      string
	data     string // of a Local one as a whole
	machines []*Machine
	began    time.Time

	mu  sync.Mutex
	log strings.Builder // mu
}

// Machine is one machine of a Cluster. What a System can do, it can; Connect and CLI use its own
// sigmad.
type Machine struct {
	*System
	Name sigma.MachineID
	Net  *netlab.Machine // nil unless of kind Namespaces

	cluster *Cluster
	joined  bool
	killed  bool // since it was booted
}

// NewCluster starts machines m1 and so on, which have all joined when it returns. At the test's end
// they are taken down and it fails if anything of them is left.
func NewCluster(tb testing.TB, o ClusterOptions) *Cluster {
	tb.Helper()
	RequireRoot(tb)
	if err := netlab.Missing(); err != nil && o.Kind != Local {
		tb.Skipf("skipped: %v", err)
	}
	c, err := prepare(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("%s", c.KeepLogs(tb.Name()))
		}
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	if err := c.start(); err != nil {
		tb.Fatal(err)
	}
	return c
}

// StartCluster is NewCluster for programs that are no tests. The caller closes it.
func StartCluster(o ClusterOptions) (*Cluster, error) {
	c, err := prepare(o)
	if err != nil {
		return nil, err
	}
	if err := c.start(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// prepare makes directories, guardians and the network.
func prepare(o ClusterOptions) (*Cluster, error) {
	if o.Kind == "" {
		o.Kind = Namespaces
	}
	o.Machines, o.Control = max(o.Machines, 1), max(o.Control, 1)
	c := &Cluster{o: o, bin: o.Bin, began: time.Now()}
	err := c.prepare()
	if err != nil {
		err = errors.Join(err, c.Close())
	}
	return c, err
}

func (c *Cluster) prepare() (err error) {
	if c.bin == "" {
		if c.bin, err = binDir(); err != nil {
			return err
		}
	}
	if c.dir, err = os.MkdirTemp("", "sigma-test-"); err != nil {
		return err
	}
	if err := os.Chmod(c.dir, 0o711); err != nil {
		return err
	}
	c.data = filepath.Join(c.dir, "all")
	if c.o.Kind == Namespaces {
		if c.Lab, err = netlab.New(c.o.Machines, c.o.Seed); err != nil {
			return err
		}
	}
	nsfs := nsfsMounts()
	return takeNumbers(c.o.Machines, func(number uint32) error {
		for i := range c.o.Machines {
			m, err := c.prepareMachine(i, number)
			if err != nil {
				return err
			}
			m.nsfs = nsfs
			c.machines = append(c.machines, m)
		}
		return nil
	})
}

func (c *Cluster) prepareMachine(i int, number uint32) (*Machine, error) {
	m := &Machine{Name: sigma.MachineID(fmt.Sprint("m", i+1)), cluster: c}
	home := filepath.Join(c.dir, string(m.Name))
	data := filepath.Join(home, "data")
	if c.o.Kind == Local {
		home = filepath.Join(c.data, "machines", string(m.Name))
		data = home
	} else if err := c.giveDisk(data); err != nil {
		return nil, err
	} else if err := giveNumber(data, number+uint32(i)); err != nil {
		return nil, err
	}
	m.System = &System{DataDir: data, home: home, bin: c.bin, options: Options{Machine: string(m.Name),
		Weaken: c.o.Weaken}}
	if c.Lab != nil {
		m.Net = c.Lab.Machine(i)
		m.System.start = m.Net.Start
	}
	var err error
	m.System.guardian, err = newGuardian(m.System, c.dir)
	return m, err
}

// takeNumbers has take give machines the numbers of instances that it is told the first of, while
// no other test of this host chooses any. The lock is on the directory of all tests' files, so that
// nothing is left of it.
func takeNumbers(machines int, take func(first uint32) error) error {
	dir, err := os.Open(os.TempDir())
	if err != nil {
		return err
	}
	defer dir.Close() // which unlocks it
	for err = syscall.EINTR; err == syscall.EINTR; {
		err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return os.NewSyscallError("flock", err)
	}
	return take(freeNumbers(machines))
}

// freeNumbers chooses the first of so many numbers of instances in a row: modulo 1024 none is that
// of another system of a test.
func freeNumbers(machines int) uint32 {
	taken := map[uint32]bool{}
	var files []string
	for _, below := range []string{"m*/data", "all/machines/m*",
		"data"} { // of clusters of both kinds, and of systems of one machine
		found, _ := filepath.Glob(filepath.Join(os.TempDir(), "sigma-test-*", below, "instance"))
		files = append(files, found...)
	}
	for _, f := range files {
		var n uint32
		if b, err := os.ReadFile(f); err == nil {
			fmt.Sscanf(string(b), "%x", &n)
			taken[n%1024] = true
		}
	}
	for {
		first := rand.Uint32()
		free := true
		for i := range machines {
			free = free && !taken[(first+uint32(i))%1024]
		}
		if free || len(taken)+machines > 512 {
			return first
		}
	}
}

// giveNumber makes a data directory of an instance with a number of our choice: left to themselves
// two machines of a host could get uids in common, which the number modulo 1024 decides.
func giveNumber(data string, number uint32) error {
	if err := os.MkdirAll(data, 0o711); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(data, "instance"), fmt.Appendf(nil, "%08x\n", number), 0o600)
}

// start founds the system and lets the others join.
func (c *Cluster) start() error {
	switch {
	case c.o.Kind == Local && c.o.Unstarted:
		return nil
	case c.o.Kind == Local:
		return c.startLocal()
	}
	first := c.machines[0]
	if err := first.Boot(); err != nil {
		return err
	}
	if len(c.machines) > 1 {
		token, err := c.Token(len(c.machines) - 1)
		if err != nil {
			return err
		}
		for _, m := range c.machines[1:] {
			if err := m.Join(first.Address(), token); err != nil {
				return err
			}
		}
	}
	return c.makeRealms()
}

func (c *Cluster) startLocal() error {
	args := append([]string{"up", "--detach", "--machines", fmt.Sprint(c.o.Machines), "--control",
		fmt.Sprint(c.o.Control), "--data", c.data}, c.offer()...)
	stdout, stderr, code, err := c.machines[0].cli(args...)
	if err != nil || code != 0 {
		return fmt.Errorf("sigma %s: exit code %d, %v\n%s%s", strings.Join(args, " "), code, err, stdout, stderr)
	}
	c.Note("sigma up --machines %d", c.o.Machines)
	if err := c.started(); err != nil {
		return err
	}
	return c.makeRealms()
}

func (c *Cluster) started() error {
	for _, m := range c.machines {
		if err := m.booted(); err != nil {
			return err
		}
		m.joined = true
	}
	return nil
}

// Started tells of machines that the test has started itself.
func (c *Cluster) Started(tb testing.TB) {
	tb.Helper()
	if err := c.started(); err != nil {
		tb.Fatal(err)
	}
}

// Data is the data directory of a Local one as a whole.
func (c *Cluster) Data() string { return c.data }

// Bin is where the programs are that it is made of.
func (c *Cluster) Bin() string { return c.bin }

func (c *Cluster) makeRealms() error {
	for _, r := range c.o.Realms {
		if stdout, stderr, code, err := c.machines[0].cli("realm", "create", string(r)); err != nil || code != 0 {
			return fmt.Errorf("sigma realm create %s: exit code %d, %v\n%s%s", r, code, err, stdout, stderr)
		}
	}
	return nil
}

// offer are the flags of what each machine offers.
func (c *Cluster) offer() (args []string) {
	if c.o.CPU > 0 {
		args = append(args, "--cpu", fmt.Sprint(c.o.CPU))
	}
	if c.o.Memory > 0 {
		args = append(args, "--memory", c.o.Memory.String())
	}
	return args
}

// Token makes a token for so many machines, at the first machine that answers.
func (c *Cluster) Token(uses int) (string, error) {
	var errs []error
	for _, m := range c.machines {
		if !m.joined || !m.Running() {
			continue
		}
		stdout, stderr, code, err := m.cli("token", "create", "--uses", fmt.Sprint(uses))
		for word := range strings.FieldsSeq(stdout) {
			if strings.HasPrefix(word, "sigma-token-") && code == 0 {
				return word, nil
			}
		}
		errs = append(errs, fmt.Errorf("sigma token create at %s: exit code %d, %w\n%s%s", m.Name, code, err, stdout,
			stderr))
	}
	return "", errors.Join(errs...)
}

// Size is how many machines there are, running or not.
func (c *Cluster) Size() int { return len(c.machines) }

// Machine gives the i-th, from 0: that is machine m1.
func (c *Cluster) Machine(i int) *Machine { return c.machines[i] }

// Machines gives all of them.
func (c *Cluster) Machines() []*Machine { return c.machines }

// Address is where others reach the machine.
func (m *Machine) Address() string { return fmt.Sprintf("%s:%d", m.Net.Addr, MachinePort) }

// Boot starts a machine of kind Namespaces on its data directory: one that never joined founds a
// system, any other registers anew.
func (m *Machine) Boot() error {
	m.options.args = nil
	if m.cluster.o.Machines > 1 {
		m.options.args = append([]string{"--address", m.Address()}, m.cluster.offer()...)
	}
	m.cluster.Note("boot %s", m.Name)
	err := m.up()
	m.joined, m.killed = m.joined || err == nil, false
	return err
}

// Join lets a machine of kind Namespaces that has never run join the system at an address.
func (m *Machine) Join(address, token string) error {
	args := append([]string{"join", address, "--token", token, "--machine", string(m.Name), "--address", m.Address(),
		"--detach"}, m.cluster.offer()...)
	if m.Index() < m.cluster.o.Control {
		args = append(args, "--control")
	}
	m.cluster.Note("join %s", m.Name)
	stdout, stderr, code, err := m.cli(args...)
	if err != nil || code != 0 {
		return fmt.Errorf("sigma join of %s: exit code %d, %v\n%s%s", m.Name, code, err, stdout, stderr)
	}
	m.joined = true
	return m.booted()
}

// Index is the i that Cluster.Machine gives it for.
func (m *Machine) Index() int {
	for i, o := range m.cluster.machines {
		if o == m {
			return i
		}
	}
	return -1
}

// Control tells whether it was started as a control machine.
func (m *Machine) Control() bool { return m.Index() < m.cluster.o.Control }

// Client opens a realm at this machine's sigmad. The caller closes it.
func (m *Machine) Client(ctx context.Context, realm sigma.RealmID) (*sdk.Client, error) {
	return sdk.Connect(ctx, m.Socket(), realm)
}

// Note writes a line into the cluster's log, with the time since its start.
func (c *Cluster) Note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(&c.log, "%s %8.3f %s\n", time.Now().Format("15:04:05.000"), time.Since(c.began).Seconds(),
		fmt.Sprintf(format, args...))
}

// KeepLogs copies the logs of all machines and its own to a directory that stays, below
// SIGMA_TEST_LOGS or the directory for temporary files, and says where.
func (c *Cluster) KeepLogs(name string) string {
	parent := os.Getenv("SIGMA_TEST_LOGS")
	if parent != "" {
		os.MkdirAll(parent, 0o755)
	}
	dir, err := os.MkdirTemp(parent, "sigma-failed-"+strings.ReplaceAll(name, "/", "-")+"-")
	if err != nil {
		return err.Error()
	}
	c.mu.Lock()
	text := c.log.String()
	c.mu.Unlock()
	if os.Getenv(stacksEnv) != "" {
		c.dumpStacks()
	}
	errs := []error{os.WriteFile(filepath.Join(dir, "cluster.log"), []byte(text), 0o644)}
	for _, m := range c.machines {
		b, err := os.ReadFile(filepath.Join(m.DataDir, "sigma.log"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, string(m.Name)+".log"), b, 0o644)
		}
		errs = append(errs, err)
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	said := fmt.Sprintf("the logs of all machines are kept in %s\nend of cluster.log:\n%s", dir,
		strings.Join(lines[max(0, len(lines)-30):], "\n"))
	if err := errors.Join(errs...); err != nil {
		said += "\n" + err.Error()
	}
	return said
}

// stacksEnv, in the environment, has a failed test ask every daemon where its goroutines stand.
const stacksEnv = "SIGMA_TEST_STACKS"

// dumpStacks makes the daemons print their goroutines into the machines' logs, which ends them.
func (c *Cluster) dumpStacks() {
	for _, m := range c.machines {
		for _, p := range m.processes() {
			if slices.Contains(hostsetup.ControlSet(), p.name) {
				syscall.Kill(p.pid, syscall.SIGQUIT)
			}
		}
	}
	time.Sleep(time.Second) // for the eyes of a person; nothing depends on it
}

// Close takes all down, the control machines last, and counts what is left.
func (c *Cluster) Close() error {
	var errs []error
	for _, m := range c.machines {
		errs = append(errs, m.Resume())
	}
	if c.Lab != nil {
		c.Lab.Heal()
	}
	errs = append(errs, c.downAll()...)
	for _, m := range c.machines {
		m.sweep()
	}
	if c.Lab != nil {
		errs = append(errs, c.Lab.Close())
	}
	if c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// downAll takes the machines down, those without control services first, and counts what each
// leaves.
func (c *Cluster) downAll() (errs []error) {
	var mu sync.Mutex
	down := func(control bool) {
		var all sync.WaitGroup
		for _, m := range c.machines {
			if m.Control() != control {
				continue
			}
			all.Go(func() {
				if err := m.end(); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, fmt.Errorf("%s: %w", m.Name, err))
				}
			})
		}
		all.Wait()
	}
	down(false)
	down(true)
	errs = append(errs, c.takeDisks()...)
	for _, m := range c.machines {
		if err := m.Gone(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.Name, err))
		}
	}
	return errs
}

// end takes the machine down. Control groups that one that was killed left are none of the test's
// leaks, since its next start would have removed them; but no process of it may be left.
func (m *Machine) end() error {
	if m.Running() {
		stdout, stderr, code, err := m.cli("down", "--now")
		if err != nil || code != 0 {
			return fmt.Errorf("sigma down: exit code %d, %v\n%s%s", code, err, stdout, stderr)
		}
		return nil
	}
	if !m.killed {
		return nil
	}
	err := poll(func() error {
		var left []string
		for _, p := range m.processes() {
			left = append(left, fmt.Sprintf("process %d %s %s", p.pid, p.cgroup, p.name))
		}
		return leakError(left)
	})
	m.sweepGroups()
	return err
}

// run runs a command where the machine is.
func (s *System) run(cmd *exec.Cmd) error {
	if s.start == nil {
		return cmd.Run()
	}
	if err := s.start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}
