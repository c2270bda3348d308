package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// realm is the tenant that a bench works in.
const realm = "bench"

// system is a sigmaOS of a bench's own.
type system struct {
	r    *Run
	data string
	pid  int // of the keeper, the parent of everything
	*sdk.Client
}

// boot starts a system; down must be called.
func (r *Run) boot(ctx context.Context) (*system, error) { return r.bootIn(ctx, "data") }

// bootIn starts a system in a directory of its own, with more flags of sigma up.
func (r *Run) bootIn(ctx context.Context, dir string, flags ...string) (*system, error) {
	s := &system{r: r, data: filepath.Join(r.dir, dir)}
	r.note("booting a system in %s", s.data)
	err := s.command(ctx, append([]string{"up", "--detach", "--machine", "bench"}, flags...)...)
	if err == nil {
		err = s.command(ctx, "realm", "create", realm)
	}
	if err == nil {
		s.pid, err = s.keeper()
	}
	if err == nil {
		s.Client, err = sdk.Connect(ctx, filepath.Join(s.data, "sigmad", "admin.sock"), realm)
	}
	if err != nil {
		s.down()
		return nil, err
	}
	return s, nil
}

// keeper reads which process is the parent of everything.
func (s *system) keeper() (int, error) {
	lock, err := os.ReadFile(filepath.Join(s.data, "lock"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(lock)))
}

// command runs the sigma command on this system.
func (s *system) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.r.Bin, "sigma"), args...)
	cmd.Env = append(os.Environ(), "SIGMA_DATA="+s.data, "SIGMA_REALM="+realm)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C reaches it through us
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("sigma %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (s *system) down() {
	if s.Client != nil {
		s.Client.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, one := s.keeper()
	if _, many := os.Stat(filepath.Join(s.data, "cluster")); one != nil && many != nil {
		return
	}
	if err := s.command(ctx, "down", "--now"); err != nil {
		s.r.note("%v", err)
	}
}

// install stores a program and returns its path in the realm.
func (s *system) install(ctx context.Context, local, name string) (string, error) {
	program, err := os.ReadFile(local)
	if err != nil {
		return "", err
	}
	path := "/bin/" + name
	_, err = s.Put(ctx, path, program, sigma.PutOptions{Perm: 0o755})
	return path, err
}

// output runs a proc to its end and gives what it printed.
func (s *system) output(ctx context.Context, d sigma.Descriptor) ([]byte, error) {
	return s.outputOf(ctx, d, func() error { return nil })
}

// outputOf is output that calls begun when the proc has been spawned.
func (s *system) outputOf(ctx context.Context, d sigma.Descriptor, begun func() error) ([]byte, error) {
	ids, err := s.Spawn(ctx, d)
	if err == nil {
		err = begun()
	}
	if err != nil {
		return nil, err
	}
	st, err := s.WaitExit(ctx, ids[0])
	if err != nil {
		return nil, err
	}
	if !st.OK() {
		text, _, _ := s.Get(ctx, "/proc/"+string(ids[0])+"/stderr")
		return nil, fmt.Errorf("%+v: %.300s", st, text)
	}
	out, _, err := s.Get(ctx, "/proc/"+string(ids[0])+"/stdout")
	return out, err
}

// cpu is what the system's processes have used so far, ended procs and this process included.
func (s *system) cpu() (sum time.Duration) {
	for _, d := range s.cpuByPart() {
		sum += d
	}
	return sum
}

// cpuByPart divides it: this process, the launcher with its keeper, and each daemon, and what ran
// in or became procs.
func (s *system) cpuByPart() map[string]time.Duration {
	var self syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	parts := map[string]time.Duration{"bench": time.Duration(self.Utime.Nano() + self.Stime.Nano())}
	for _, p := range s.family() {
		switch {
		case s.launcher(p):
			parts["launcher"] += p.own
			parts["procs"] += p.children
		case p.daemon():
			parts[p.name] += p.own + p.children
		default:
			parts["procs"] += p.own + p.children
		}
	}
	return parts
}

// process is what /proc/PID/stat tells.
type process struct {
	pid, parent   int
	name          string
	own, children time.Duration // of the processors; of children those that were waited for
}

// daemon tells by the name; procs of a bench have others.
func (p process) daemon() bool {
	return slices.Contains(hostsetup.BootSet(), p.name)
}

func readProcess(pid int) (process, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	// The name in parentheses may have anything in it; fields are counted from the last one.
	first, last := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	f := strings.Fields(string(stat[last+1:]))
	if len(f) < 15 {
		return process{}, false
	}
	p := process{pid: pid, name: string(stat[first+1 : last])}
	p.parent, _ = strconv.Atoi(f[1])
	ticks := func(i int) time.Duration {
		n, _ := strconv.ParseInt(f[i], 10, 64)
		return time.Duration(n) * time.Second / 100
	}
	p.own, p.children = ticks(11)+ticks(12), ticks(13)+ticks(14) // utime stime, cutime cstime
	return p, true
}

// launcher reports whether p is the keeper or the launcher that it started.
func (s *system) launcher(p process) bool {
	return p.pid == s.pid || p.parent == s.pid && p.name == "launcher"
}

// family lists the keeper and all that descend from it.
func (s *system) family() (out []process) {
	all := map[int]process{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := readProcess(pid); ok {
				all[pid] = p
			}
		}
	}
	for _, p := range all {
		for pid, hops := p.pid, 0; pid > 1 && hops < 64; pid, hops = all[pid].parent, hops+1 {
			if pid == s.pid {
				out = append(out, p)
				break
			}
		}
	}
	return out
}
