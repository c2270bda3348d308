package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dockerd is a docker daemon of the bench's own: its state, its socket and its cgroups are the
// bench's, it makes no bridge and no firewall rules, and nothing is left of it after stop. Its
// processes, and those of containers, are in cgroups below one, by which its processor time is
// counted.
type dockerd struct {
	r       *Run
	dir     string
	group   string // name of its cgroups
	client  string // path of the docker command
	cmd     *exec.Cmd
	ended   chan error
	created []string // directories of its programs that were not there before, deepest first
}

const (
	dockerReadyMax = 15 * time.Second
	dockerStopMax  = 10 * time.Second
	dockerImage    = "sigma-bench-start"
)

// startDocker starts the daemon and makes an image of nothing but the program.
func (r *Run) startDocker(ctx context.Context, program string) (d *dockerd, err error) {
	daemon, err := find(ctx, "dockerd", "docker.io")
	if err != nil {
		return nil, err
	}
	d = &dockerd{r: r, dir: filepath.Join(r.dir, "docker"), group: filepath.Base(r.dir) + "-docker",
		ended: make(chan error, 1)}
	for _, dir := range []string{"/run/docker/plugins", "/run/docker", "/run/containerd/s", "/run/containerd",
		"/etc/docker/key.json"} { // there is no option for them
		if _, err := os.Stat(dir); err != nil {
			d.created = append(d.created, dir)
		}
	}
	if d.client, err = find(ctx, "docker", "docker.io"); err != nil {
		return nil, err
	}
	for _, sub := range []string{"data", "exec", "image", "config"} {
		if err := os.MkdirAll(filepath.Join(d.dir, sub), 0o711); err != nil {
			return nil, err
		}
	}
	config := filepath.Join(d.dir, "daemon.json") // not that of the machine's own
	if err := os.WriteFile(config, []byte("{}\n"), 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(d.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.cmd = exec.Command(daemon, "--host", d.socket(), "--data-root", filepath.Join(d.dir, "data"), "--exec-root",
		filepath.Join(d.dir, "exec"), "--pidfile", filepath.Join(d.dir, "pid"),
		"--config-file", config, "--cgroup-parent", "/"+d.group+"/containers", "--iptables=false", "--ip6tables=false",
		"--ip-forward=false", "--ip-masq=false", "--bridge=none")
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C reaches it through stop
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { d.ended <- d.cmd.Wait() }()
	err = d.enterGroups()
	if err == nil {
		err = d.ready(ctx)
	}
	if err == nil {
		err = d.importImage(ctx, program)
	}
	if err != nil {
		d.stop()
		return nil, err
	}
	return d, nil
}

func (d *dockerd) socket() string { return "unix://" + filepath.Join(d.dir, "socket") }

// command is the docker command on this daemon.
func (d *dockerd) command(args ...string) []string {
	return append([]string{d.client, "--config", filepath.Join(d.dir, "config"), "--host", d.socket()}, args...)
}

// run is what starts the program once, as isolated as a proc.
func (d *dockerd) run() []string {
	return d.command("run", "--rm", "--network", "none", "--memory", "64m", "--pids-limit", "64", "--cap-drop", "ALL",
		"--user", "60000:60000", "--read-only", "--security-opt", "no-new-privileges",
		dockerImage, "/start")
}

// roots are the places where cgroups are mounted.
func cgroupMounts() []string {
	var out []string
	for _, dir := range []string{"cpuacct", "memory", "pids", "cpu", "cpuset", "devices", "freezer", "blkio", "systemd",
		"unified", "cpu,cpuacct", "perf_event", "net_cls,net_prio", "hugetlb", "rdma", "misc", ""} {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", dir, "cgroup.procs")); err == nil {
			out = append(out, filepath.Join("/sys/fs/cgroup", dir))
		}
	}
	return out
}

// enterGroups puts the daemon where its time is counted, before it makes anything.
func (d *dockerd) enterGroups() error {
	for _, root := range cgroupMounts() {
		dir := filepath.Join(root, d.group, "daemon")
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(d.cmd.Process.Pid)), 0)
		}
		if err == nil ||
			filepath.Base(root) == "cpuset" { // a new cpuset has no processors, which docker looks after for containers
			continue
		}
		return err
	}
	return nil
}

// cpu is what the daemon and its containers have used.
func (d *dockerd) cpu() time.Duration {
	for _, root := range cgroupMounts() {
		if ns := number(filepath.Join(root, d.group, "cpuacct.usage")); ns > 0 {
			return time.Duration(ns)
		}
		stat, err := os.ReadFile(filepath.Join(root, d.group, "cpu.stat"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(stat)) {
			if us, is := strings.CutPrefix(line, "usage_usec "); is {
				n, _ := strconv.ParseInt(strings.TrimSpace(us), 10, 64)
				if n > 0 {
					return time.Duration(n) * time.Microsecond
				}
			}
		}
	}
	return 0
}

func (d *dockerd) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dockerReadyMax)
	defer cancel()
	for {
		args := d.command("version", "--format", "{{.Server.Version}}")
		out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
		if err == nil {
			d.r.note("a docker daemon %s of the bench's own runs", strings.TrimSpace(string(out)))
			return nil
		}
		select {
		case err := <-d.ended:
			d.ended <- err
			log, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
			return fmt.Errorf("dockerd does not start here: %w: %.300s", err, lines[len(lines)-1])
		case <-ctx.Done():
			return errors.New("dockerd does not get ready")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// importImage makes an image from an archive with one file.
func (d *dockerd) importImage(ctx context.Context, program string) error {
	dir := filepath.Join(d.dir, "image")
	bytes, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "start"), bytes, 0o755)
	}
	if err == nil {
		err = d.r.make(ctx, "tar", "-C", dir, "-cf", filepath.Join(d.dir, "image.tar"), "start")
	}
	if err == nil {
		args := d.command("import", filepath.Join(d.dir, "image.tar"), dockerImage)
		err = d.r.make(ctx, args[0], args[1:]...)
	}
	return err
}

// stop ends the daemon and whatever it has started, and undoes its mounts and cgroups.
func (d *dockerd) stop() {
	d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(dockerStopMax):
		d.cmd.Process.Kill()
		<-d.ended
	}
	groups := func(each func(dir string)) {
		for _, root := range cgroupMounts() {
			filepath.WalkDir(filepath.Join(root, d.group), func(path string, e os.DirEntry, err error) error {
				if err == nil && e.IsDir() {
					each(path)
				}
				return nil
			})
		}
	}
	for range 50 { // what was killed needs a moment to be gone
		left := 0
		groups(func(dir string) {
			members, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for _, pid := range strings.Fields(string(members)) {
				if n, err := strconv.Atoi(pid); err == nil && n > 1 {
					syscall.Kill(n, syscall.SIGKILL)
					left++
				}
			}
		})
		var dirs []string
		groups(func(dir string) { dirs = append(dirs, dir) })
		for i := range dirs {
			if os.Remove(dirs[len(dirs)-1-i]) != nil {
				left++
			}
		}
		if left == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], d.dir+"/") {
			unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
	for _, dir := range d.created {
		os.Remove(dir)
	}
	os.RemoveAll(d.dir)
}
