package health

import (
	"context"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/stores"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// host is a machine of made-up files.
func host(files map[string]string) machine {
	m := fstest.MapFS{}
	for path, text := range files {
		m[strings.TrimPrefix(path, "/")] = &fstest.MapFile{Data: []byte(text)}
	}
	return machine{files: func(path string) ([]byte, error) {
		return fs.ReadFile(m, strings.TrimPrefix(path, "/"))
	}, dirs: m}
}

// A stock Debian 12 with cgroup v2 on sound hardware has nothing weak but resending of FUSE
// requests, which its kernel is too old for.
var debian = map[string]string{
	"/proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
	"/proc/self/mountinfo": "25 30 0:22 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 " +
		"rw\n",
	"/sys/fs/cgroup/cgroup.controllers":         "cpuset cpu io memory hugetlb pids rdma misc\n",
	"/proc/swaps":                               "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 1 0 -2\n",
	"/proc/pressure/memory":                     "some avg10=0.00\n",
	"/dev/fuse":                                 "",
	"/sys/fs/cgroup/init.scope/memory.swap.max": "max\n",
}

func TestFeatures(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string // other than Debian's; "-" = not there
		weak  []string          // besides
	}{
		{"debian", nil, nil},
		{"a disk without weights", map[string]string{"/sys/block/vda/queue/scheduler": "none [mq-deadline] bfq\n"},
			[]string{"I/O weight"}},
		{"a disk with weights", map[string]string{"/sys/block/vda/queue/scheduler": "none mq-deadline [bfq]\n",
			"/sys/block/loop0/queue/scheduler": "[none] bfq\n"}, nil},
		{"a disk with costs", map[string]string{"/sys/block/vda/queue/scheduler": "[none]\n",
			"/sys/fs/cgroup/io.cost.qos": "254:0 enable=1 ctrl=auto\n"}, nil},
		{"no psi", map[string]string{"/proc/pressure/memory": "-"}, []string{"pressure"}},
		{"no fuse", map[string]string{"/dev/fuse": "-"}, []string{"fuse"}},
		{"v1", map[string]string{"/proc/self/mountinfo": "26 30 0:23 / /cg/memory rw - cgroup cgroup rw,memory\n"},
			[]string{"freezer", "swap", "I/O weight"}},
		{"v1 with freezer and swap",
			map[string]string{
				"/proc/self/mountinfo": "26 30 0:23 / /cg/memory rw - cgroup cgroup rw,memory\n27 " +
					"30 0:24 / /cg/f rw - cgroup cgroup rw,freezer\n",
				"/cg/memory/memory.memsw.limit_in_bytes": "1\n"}, []string{"I/O weight"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{}
			for _, from := range []map[string]string{debian, c.files} {
				for path, text := range from {
					if files[path] = text; text == "-" {
						delete(files, path)
					}
				}
			}
			var got []string
			for _, f := range host(files).features() {
				if f.Found == "" || (f.State == findingOK) != (f.Advice == "") {
					t.Errorf("a finding lacks words, or has too many: %+v", f)
				}
				if f.State != findingOK {
					got = append(got, f.Check)
				}
			}
			want := append([]string{"fuse resend"}, c.weak...)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("weak: %q, want %q", got, want)
			}
		})
	}
}

func TestLandlockWords(t *testing.T) {
	if found, advice := landlockWords(4); found != "ABI 4: files, moves between directories, truncation, TCP" ||
		!strings.Contains(advice, "signals") || !strings.Contains(advice, "Linux 6.12") {
		t.Errorf("got %q, %q", found, advice)
	}
	for _, abi := range []int{6, 7, 99} {
		if _, advice := landlockWords(abi); advice != "" {
			t.Errorf("ABI %d: %q", abi, advice)
		}
	}
}

// Only what the launcher started is looked at, and each wall that is not there is named.
func TestActive(t *testing.T) {
	good := "NoNewPrivs:\t1\nSeccomp:\t2\nCapEff:\t0000000000000000\nUid:\t70000\t70000\t70000\t70000\n"
	m := host(map[string]string{
		"/proc/1/status":  "Name:\tinit\nPPid:\t0\n",
		"/proc/9/status":  "Name:\tkeeper\nPPid:\t1\nUid:\t0\t0\t0\t0\n",
		"/proc/10/status": "Name:\tlauncher\nPPid:\t9\nUid:\t0\t0\t0\t0\n",
		"/proc/11/status": "Name:\tsigmad\nPPid:\t9\n" + good,
		"/proc/12/status": "Name:\tproc\nPPid:\t11\nNoNewPrivs:\t1\nSeccomp:\t0\nCapEff:\t0000000000000000\nUid:\t0\t0\t0\t0\n",
		"/proc/13/status": "Name:\tdone\nState:\tZ (zombie)\nPPid:\t10\n",
		"/proc/14/status": "Name:\tother\nPPid:\t1\n",
		"/proc/15/status": "Name:\tplacer\nPPid:\t10\n" + strings.Replace(good, "0000000000000000", onlySysNice, 1),
		"/proc/16/status": "Name:\tproc\nPPid:\t10\n" + strings.Replace(good, "0000000000000000", onlySysNice, 1),
	})
	ps := m.descendants(9)
	if len(ps) != 4 || ps[0].pid != 11 || ps[1].pid != 12 || ps[2].pid != 15 {
		t.Fatalf("got %+v", ps)
	}
	if got := ps[0].lacks(); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	if got := ps[1].lacks(); !slices.Equal(got, []string{"no filter", "it is root"}) {
		t.Errorf("got %q", got)
	}
	if got := ps[2].lacks(); len(got) != 0 { // the placer keeps one capability
		t.Errorf("got %q", got)
	}
	if got := ps[3].lacks(); !slices.Equal(got, []string{"no an empty set of capabilities"}) {
		t.Errorf("got %q", got)
	}
}

// deafStores never answers.
type deafStores struct{}

func (deafStores) Stores(ctx context.Context, _ sigma.RealmID, _ bool) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// oneStore has one store, which does not answer.
type oneStore struct{}

func (oneStore) Stores(_ context.Context, after sigma.RealmID, _ bool) ([]byte, error) {
	if after != "" {
		return []byte("[]"), nil
	}
	return []byte(`[{"realm":"r1","url":"http://store:9000/b","state":"the object store did not answer in time"}]`), nil
}

// Goal: doctor fails, and within 2 s, when a store, the server of objects, or the majority of
// control machines does not answer.
func TestDoctorTellsOutages(t *testing.T) {
	for says, c := range map[string]stores.Lister{"http://store:9000/b of the realm r1: the object store did not": oneStore{}, "no answer within": deafStores{}} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), partsMax)
			defer cancel()
			found := storeWords(ctx, c)
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("%T: doctor took %v", c, took)
			}
			if len(found) != 1 || found[0].State != findingDown || !strings.HasPrefix(found[0].Found, says) ||
				exitOf(found) != cli.ExitFailure {
				t.Errorf("%T: doctor finds %+v", c, found)
			}
		})
	}
	if found := memberWords(machines.Membership{System: "s", Machines: 3, Alive: 1, Controls: 3, Voting: 1},
		"m1"); exitOf(found) != cli.ExitFailure {
		t.Errorf("without a majority doctor finds %+v", found)
	}
	if found := memberWords(machines.Membership{System: "s", Machines: 3, Alive: 2, Controls: 3, Voting: 2},
		"m1"); exitOf(found) != cli.ExitFailure || found[1].State != findingWeak {
		t.Errorf("with one of three control machines lost doctor finds %+v", found)
	}
	if found := memberWords(machines.Membership{System: "s", Machines: 3, Alive: 3, Controls: 3, Voting: 3},
		"m1"); exitOf(found) != cli.ExitOK {
		t.Errorf("with all machines doctor finds %+v", found)
	}
}

// Goal: doctor tells of each service that does not run or does not answer, also in the moments in
// which one that dies again and again runs.
func TestServiceWords(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		state    string
		age      time.Duration
		restarts uint32
		want     string // state of the finding
	}{
		{"running", time.Minute, 0, findingOK},
		{"running", time.Second, 0, findingOK},
		{"running", time.Minute, 7, findingOK},
		{"running", time.Second, 7, findingWeak},
		{"starting", time.Second, 0, findingOK},
		{"starting", time.Second, 7, findingDown},
		{"restarting", time.Second, 0, findingDown},
		{"silent", time.Minute, 0, findingDown},
		{"disk full", time.Minute, 0, findingDown},
	} {
		found := serviceWords([]sigmap.Service{{Name: "besched", State: c.state, Since: now.Add(-c.age),
			Restarts: c.restarts}}, now)
		if len(found) != 1 || found[0].State != c.want || c.want != findingOK &&
			(!strings.Contains(found[0].Found, "besched") || found[0].Advice == "") {
			t.Errorf("%s for %v after %d restarts: %+v, want %s", c.state, c.age, c.restarts, found, c.want)
		}
	}
}
