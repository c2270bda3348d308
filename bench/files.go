package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// filesBench: what do files cost a program that is a proc, beside the host's own files and a plain
// copy over TCP? Two machines joined by a veth pair (sigma up --machines 2); the same program,
// programs/files, is the reader and writer of all arms: as a proc of the first machine, and as an
// ordinary process. Files of the host lie in the same file system, the TCP server is in the second
// machine's network, and tls is the same with the encryption that sigmaOS has between machines.
// Files to be read are made in all arms by writes of 1 MiB, as it matters to who reads whether the
// kernel caches them in large or in small pieces. Large files are read and written in pieces of 1
// MiB; 2 MB files as in 000 Table 6.3, in pieces of 8 KiB one after another (sync) and in one call
// (async); small ones have 4 KiB. Everything is in the page cache but for ux_read_cold, before
// which the file is dropped from it; _durable counts until the bytes are on the disk and the file
// has its name, which the other writes have after the time that is measured. The reads and writes
// _by_messages, and _streamed, use no passed descriptors of files. mount is the tree as sigma mount
// shows it, read by an ordinary process when nothing is in the cache of the mount itself. s3client
// is minio-go with a server of the same protocol (gofakes3, in memory) in the first machine's
// network. Each figure in bytes per second has one of processor time for each byte beside it, of
// the same samples: of who reads or writes, of the daemons and of the peers' servers.
func filesBench() Bench {
	b := Bench{Name: "files",
		Question: "how fast are files, here and on another machine, beside native ones and a plain copy over TCP?",
		run:      runFiles}
	for _, i := range filesItems {
		b.Metrics = append(b.Metrics, i.metric)
		if m, ok := i.processor(); ok {
			b.Metrics = append(b.Metrics, m)
		}
	}
	return b
}

const filesMemory = 96 * sigma.MiB

// filesItem is one thing that is measured.
type filesItem struct {
	metric string
	what   string   // as programs/files knows it
	store  string   // of ours
	path   string   // of ours
	peers  []string // stores; the first is what the goal is about
	size   int      // 0 = the large one
	piece  int      // 0 = 1 MiB
	figure int      // 0 = bytes per second of moving, 1 = and of making durable, 2 = microseconds of each
	cold   bool     // drop what is cached first
}

// processor is the metric of the processor time for each byte that goes with one of bytes per
// second.
func (i filesItem) processor() (string, bool) {
	base, ok := strings.CutSuffix(i.metric, "_bytes_per_s")
	return base + "_cpu_ns_per_byte", ok && i.figure == 0 && !i.cold
}

const (
	bulk  = 2 << 20
	small = 4 << 10
	sync8 = 8 << 10
)

var (
	beside     = []string{"native"}
	besideTCP  = []string{"tcp", "tls"}
	besideS3   = []string{"native", "s3client"}
	filesItems = []filesItem{
		{metric: "ux_read_bytes_per_s", what: "read", store: "sigma", path: "/ux/m1/large", peers: beside},
		{metric: "ux_read_cold_bytes_per_s", what: "read", store: "sigma", path: "/ux/m1/large", peers: beside,
			cold: true},
		{metric: "ux_read_by_messages_bytes_per_s", what: "read", store: "stream", path: "/ux/m1/large", peers: beside},
		{metric: "ux_write_bytes_per_s", what: "write", store: "hidden", path: "/ux/m1/written", peers: beside},
		{metric: "ux_write_durable_bytes_per_s", what: "write", store: "hidden", path: "/ux/m1/written", peers: beside,
			figure: 1},
		{metric: "ux_write_by_messages_bytes_per_s", what: "write", store: "sigma", path: "/ux/m1/inplace",
			peers: beside},
		{metric: "remote_read_bytes_per_s", what: "read", store: "sigma", path: "/ux/m2/large", peers: besideTCP},
		{metric: "remote_write_bytes_per_s", what: "write", store: "hidden", path: "/ux/m2/written", peers: besideTCP},
		{metric: "remote_write_durable_bytes_per_s", what: "write", store: "hidden", path: "/ux/m2/written",
			peers: besideTCP, figure: 1},
		{metric: "s3_read_bytes_per_s", what: "read", store: "sigma", path: "/s3/files/large", peers: beside},
		{metric: "s3_read_streamed_bytes_per_s", what: "read", store: "stream", path: "/s3/files/large",
			peers: besideS3},
		{metric: "s3_write_bytes_per_s", what: "write", store: "hidden", path: "/s3/files/written", peers: besideS3},
		{metric: "mount_read_bytes_per_s", what: "read", store: "mount", path: "/ux/m1/large", peers: beside},
		{metric: "ux_2mb_sync_read_bytes_per_s", what: "read", store: "stream", path: "/ux/m1/bulk", peers: beside,
			size: bulk, piece: sync8},
		{metric: "ux_2mb_async_read_bytes_per_s", what: "read", store: "sigma", path: "/ux/m1/bulk", peers: beside,
			size: bulk, piece: bulk},
		{metric: "ux_2mb_sync_write_bytes_per_s", what: "write", store: "sigma", path: "/ux/m1/bulkw", peers: beside,
			size: bulk, piece: sync8},
		{metric: "ux_2mb_async_write_bytes_per_s", what: "write", store: "hidden", path: "/ux/m1/bulkw", peers: beside,
			size: bulk, piece: bulk},
		{metric: "remote_2mb_sync_read_bytes_per_s", what: "read", store: "sigma", path: "/ux/m2/bulk", size: bulk,
			piece: sync8},
		{metric: "remote_2mb_async_read_bytes_per_s", what: "read", store: "sigma", path: "/ux/m2/bulk",
			peers: besideTCP, size: bulk, piece: bulk},
		{metric: "remote_2mb_sync_write_bytes_per_s", what: "write", store: "sigma", path: "/ux/m2/bulkw", size: bulk,
			piece: sync8},
		{metric: "remote_2mb_async_write_bytes_per_s", what: "write", store: "hidden", path: "/ux/m2/bulkw",
			peers: besideTCP, size: bulk, piece: bulk},
		{metric: "s3_2mb_async_read_bytes_per_s", what: "read", store: "sigma", path: "/s3/files/bulk", peers: beside,
			size: bulk, piece: bulk},
		{metric: "s3_2mb_async_write_bytes_per_s", what: "write", store: "hidden", path: "/s3/files/bulkw",
			peers: beside, size: bulk, piece: bulk},
		{metric: "memfs_2mb_sync_read_bytes_per_s", what: "read", store: "sigma", path: "/files-tree/bulk", size: bulk,
			piece: sync8},
		{metric: "memfs_2mb_async_read_bytes_per_s", what: "read", store: "sigma", path: "/files-tree/bulk", size: bulk,
			piece: bulk},
		{metric: "memfs_2mb_async_write_bytes_per_s", what: "write", store: "sigma", path: "/files-tree/bulkw",
			size: bulk, piece: bulk},
		{metric: "small_read_us", what: "get", store: "sigma", path: "/ux/m1/small", peers: beside, size: small,
			figure: 2},
		{metric: "small_write_us", what: "put", store: "sigma", path: "/ux/m1/smallw", peers: beside, size: small,
			figure: 2},
		{metric: "remote_small_read_us", what: "get", store: "sigma", path: "/ux/m2/small", peers: besideTCP[:1],
			size: small, figure: 2},
	}
)

// fileArms is one run.
type fileArms struct {
	r       *Run
	s       *system // of the first machine, which alone takes procs
	c       *testenv.Cluster
	local   string            // the program
	path    string            // and in the realm
	host    string            // directory of native files
	server  map[string]string // addresses of the peers, by store
	mount   string            // where the realm's tree is mounted
	others  []int             // processes that work for the arms, besides the system's daemons
	ends    []func()
	large   int
	created map[string]bool // files that are there
}

func runFiles(ctx context.Context, r *Run) (err error) {
	blocks := 10
	a := &fileArms{r: r, large: 256 << 20, server: map[string]string{}, created: map[string]bool{}}
	if r.Quick {
		blocks, a.large = 3, 64<<20
	}
	if a.c, err = testenv.StartCluster(testenv.ClusterOptions{Kind: testenv.Local, Machines: 2, Bin: r.Bin,
		Realms: []sigma.RealmID{realm}}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.c.Close()) }()
	defer func() {
		for _, f := range a.ends {
			f()
		}
	}()
	if err := a.prepare(ctx); err != nil {
		return err
	}
	for _, i := range filesItems {
		if err := a.measure(ctx, i, blocks); err != nil {
			return fmt.Errorf("%s: %w", i.metric, err)
		}
	}
	return nil
}

// prepare starts servers and makes the files.
func (a *fileArms) prepare(ctx context.Context) error {
	a.local, a.host = filepath.Join(a.r.dir, "files"), filepath.Join(a.r.dir, "host")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", a.local, "./bench/programs/files")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the program (run it in a clone): %w\n%s", err, out)
	}
	if err := os.Mkdir(a.host, 0o700); err != nil {
		return err
	}
	client, err := a.c.Machine(0).Client(ctx, realm)
	if err != nil {
		return err
	}
	a.s = &system{r: a.r, Client: client}
	a.ends = append(a.ends, client.Close)
	if a.path, err = a.s.install(ctx, a.local, "files"); err != nil {
		return err
	}
	if out, err := a.c.Machine(0).Command(ctx, "machine", "cordon", "m2").CombinedOutput(); err != nil {
		return fmt.Errorf("cordon: %w\n%s", err, out)
	}
	for _, kind := range []string{"tcp", "tls", "s3client"} {
		if err := a.serve(ctx, kind); err != nil {
			return err
		}
	}
	if err := a.mountTree(ctx); err != nil {
		return err
	}
	if err := a.s.Mkdir(ctx, "/s3/files", 0o755); err != nil {
		return err
	}
	ids, err := a.s.Spawn(ctx, sigma.Descriptor{Program: a.path, Args: []string{"tree", "/files-tree"},
		Start: sigma.StartedByCall, Memory: 4 * filesMemory})
	if err == nil {
		err = a.s.WaitStart(ctx, ids[0])
	}
	return err
}

// serve starts a peer's server: of plain copies in the second machine's network, of objects in the
// first's, where they are used.
func (a *fileArms) serve(ctx context.Context, kind string) error {
	machine, host := 1, ""
	if kind == "s3client" {
		machine = 0
	}
	members, err := a.c.Machine(0).Members(ctx)
	if err != nil {
		return err
	}
	host, _, _ = strings.Cut(members[a.c.Machine(machine).Name].Address, ":")
	address := host + ":" + map[string]string{"tcp": "9001", "tls": "9002", "s3client": "9003"}[kind]
	cmd := a.inside(ctx, machine, "serve", kind, address, a.host)
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
	a.others = append(a.others, cmd.Process.Pid)
	a.server[kind] = kind + ":" + address
	_, err = bufio.NewReader(out).ReadString('\n')
	return err
}

// mountTree mounts the realm's tree.
func (a *fileArms) mountTree(ctx context.Context) error {
	a.mount = filepath.Join(a.r.dir, "mount")
	if err := os.Mkdir(a.mount, 0o700); err != nil {
		return err
	}
	if out, err := a.c.Machine(0).Command(ctx, "mount", "-r", realm, a.mount).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w\n%s", err, out)
	}
	a.ends = append(a.ends, func() {
		if out, err := a.c.Machine(0).Command(context.WithoutCancel(ctx), "unmount",
			a.mount).CombinedOutput(); err != nil {
			a.r.note("unmount: %v\n%s", err, out)
		}
	})
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		if line, _ := os.ReadFile(name); strings.Contains(string(line), "\x00"+a.mount+"\x00") {
			pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
			a.others = append(a.others, pid)
		}
	}
	return err
}

// inside is the program as a process of the host in a machine's network.
func (a *fileArms) inside(ctx context.Context, machine int, args ...string) *exec.Cmd {
	space := fmt.Sprintf("--net=/proc/%d/ns/net", a.c.Machine(machine).PID("keeper"))
	return exec.CommandContext(ctx, "nsenter", append([]string{space, a.local}, args...)...)
}

// measure runs one item in all its arms.
func (a *fileArms) measure(ctx context.Context, i filesItem, blocks int) error {
	if i.size == 0 {
		i.size = a.large
	}
	if i.piece == 0 {
		i.piece = min(1<<20, i.size)
	}
	count := max(1, min(1000, 4<<20/i.size))
	if i.what == "read" || i.what == "get" {
		if err := a.make(ctx, i); err != nil {
			return err
		}
	}
	figures, cpu := map[string][]float64{}, map[string][]float64{}
	processor, is := i.processor()
	stores := append([]string{i.store}, i.peers...)
	arms := make([]func() error, len(stores))
	for n, store := range stores {
		arms[n] = func() error {
			if err := a.drop(i, store); err != nil {
				return err
			}
			v, used, err := a.one(ctx, i, store, count)
			if err != nil {
				return fmt.Errorf("%s: %w", store, err)
			}
			figures[store] = append(figures[store], a.r.sample(store, i.metric, v))
			if is {
				cpu[store] = append(cpu[store], a.r.sample(store, processor, used))
			}
			return nil
		}
	}
	if err := interleave(blocks, arms...); err != nil {
		return err
	}
	line := Line{Metric: i.metric, Unit: [...]string{"B/s", "B/s", "us"}[i.figure], N: blocks * count}
	err := a.compare(line, i, figures, i.figure < 2)
	if err == nil && is {
		line.Metric, line.Unit = processor, "ns"
		err = a.compare(line, i, cpu, false)
	}
	return err
}

// compare prints the figures of one metric beside those of each peer. more says that more is
// better.
func (a *fileArms) compare(line Line, i filesItem, figures map[string][]float64, more bool) error {
	ours := figures[i.store]
	line.Ours = median(ours)
	if len(i.peers) == 0 {
		return a.r.print(line)
	}
	for _, peer := range i.peers {
		l, rs := line, ratios(figures[peer], ours)
		if more {
			rs = ratios(ours, figures[peer])
		}
		l.Peer, l.Theirs = peer, pointer(median(figures[peer]))
		if err := a.r.print(l.between(rs)); err != nil {
			return err
		}
	}
	return nil
}

// make has the file that is to be read, in ours and beside it.
func (a *fileArms) make(ctx context.Context, i filesItem) error {
	stores := append([]string{"hidden"}, i.peers...)
	for _, store := range stores {
		place := i.path
		switch {
		case store == "s3client":
			place = store + i.path
		case store == "hidden" && strings.HasPrefix(i.path, "/files-tree"): // memfs knows no hidden files
			store = "sigma"
		case store != "hidden":
			store, place = "native", filepath.Base(i.path)
		}
		if a.created[place] {
			continue
		}
		w := filesItem{what: "write", path: i.path, size: i.size, piece: min(i.size, 1<<20)}
		if _, _, err := a.one(ctx, w, store, 1); err != nil {
			return err
		}
		a.created[place] = true
	}
	return nil
}

// one runs one arm and gives its figure, the mean of its repetitions, and the nanoseconds of the
// processors for each byte.
func (a *fileArms) one(ctx context.Context, i filesItem, store string, count int) (figure, cpu float64, err error) {
	path, before := i.path, a.daemons()
	native := store == "native" || a.server[store] != ""
	if native {
		path = filepath.Join(a.host, filepath.Base(i.path))
	}
	if to := a.server[store]; to != "" {
		store = to
	}
	if store == "mount" {
		native, store, path = true, "native", filepath.Join(a.mount, i.path)
	}
	args := []string{i.what, store, path, strconv.Itoa(i.size), strconv.Itoa(i.piece), strconv.Itoa(count)}
	var out []byte
	if native {
		out, err = a.inside(ctx, 0, args...).Output()
		if e := (*exec.ExitError)(nil); errors.As(err, &e) {
			err = fmt.Errorf("%w: %s", err, e.Stderr)
		}
	} else {
		out, err = a.s.output(ctx, sigma.Descriptor{Program: a.path, Args: args, Memory: filesMemory})
	}
	if err != nil {
		return 0, 0, err
	}
	var moved, all, used time.Duration
	for line := range strings.Lines(string(out)) {
		var f [3]time.Duration
		if _, err := fmt.Sscan(line, &f[0], &f[1], &f[2]); err != nil {
			return 0, 0, fmt.Errorf("%q: %w", line, err)
		}
		moved, all, used = moved+f[0], all+f[1], used+f[2]
	}
	bytes := float64(i.size) * float64(count)
	cpu = float64(used+a.daemons()-before) / bytes
	switch i.figure {
	case 1:
		return bytes / all.Seconds(), cpu, nil
	case 2:
		return moved.Seconds() * 1e6 / float64(count), cpu, nil
	}
	return bytes / moved.Seconds(), cpu, nil
}

// daemons is what has been used so far by those who serve files, of either system or of the peers.
func (a *fileArms) daemons() (sum time.Duration) {
	for _, m := range a.c.Machines() {
		for _, name := range []string{"sigmad", "s3d"} {
			sum += processTime(m.PID(name))
		}
	}
	for _, pid := range a.others {
		sum += processTime(pid)
	}
	return sum
}

// processTime is what a process has used, to the nanosecond (clock_getcpuclockid(3));
// /proc/PID/stat has hundredths of seconds, which are much beside a file.
func processTime(pid int) time.Duration {
	var t unix.Timespec
	if pid <= 0 || unix.ClockGettime(int32(^pid<<3|2), &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// drop has a file read from the disk the next time, if its item wants that; one of the mount, from
// what is mounted.
func (a *fileArms) drop(i filesItem, store string) error {
	name := filepath.Join(a.c.Machine(0).DataDir, "sigmad", "ux", "realms", realm, "tree", filepath.Base(i.path))
	switch {
	case store == "mount":
		name = filepath.Join(a.mount, i.path)
	case !i.cold:
		return nil
	case store == "native":
		name = filepath.Join(a.host, filepath.Base(i.path))
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if i.cold { // what is not on the disk cannot be dropped
		f.Sync()
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}
