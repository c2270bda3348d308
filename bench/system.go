package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// realm is the tenant that a bench works in.
const realm = "bench"

// system is a sigmaOS of a bench's own.
type system struct {
	r    *Run
	data string
	pid  int // of the launcher, the parent of everything
	*sdk.Client
}

// boot starts a system; down must be called.
func (r *Run) boot(ctx context.Context) (*system, error) {
	s := &system{r: r, data: filepath.Join(r.dir, "data")}
	r.note("booting a system in %s", s.data)
	err := s.command(ctx, "up", "--detach", "--machine", "bench")
	if err == nil {
		err = s.command(ctx, "realm", "create", realm)
	}
	if err == nil {
		var lock []byte
		if lock, err = os.ReadFile(filepath.Join(s.data, "lock")); err == nil {
			s.pid, err = strconv.Atoi(strings.TrimSpace(string(lock)))
		}
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
	if _, err := os.Stat(filepath.Join(s.data, "lock")); err != nil {
		return
	}
	if err := s.command(ctx, "down"); err != nil {
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

// cpu is what the system's processes have used so far, ended procs and this process included.
func (s *system) cpu() time.Duration {
	_, sum := s.family()
	var self syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	return sum + time.Duration(self.Utime.Nano()+self.Stime.Nano())
}

// family lists the launcher and all that descend from it, and what they have used of the processors, ended children included.
func (s *system) family() (pids []int, sum time.Duration) {
	parents, used := map[int]int{}, map[int]time.Duration{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name in parentheses may have anything in it; fields are counted from the last one.
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(f) < 15 {
			continue
		}
		parents[pid], _ = strconv.Atoi(f[1])
		for _, ticks := range f[11:15] { // utime stime cutime cstime
			n, _ := strconv.ParseInt(ticks, 10, 64)
			used[pid] += time.Duration(n) * time.Second / 100
		}
	}
	for pid := range parents {
		for p, hops := pid, 0; p > 1 && hops < 64; p, hops = parents[p], hops+1 {
			if p == s.pid {
				pids, sum = append(pids, pid), sum+used[pid]
				break
			}
		}
	}
	return pids, sum
}
