package mr

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// fakeProcs runs the roles as goroutines of the test. Kill cancels a role's context, so that it
// ends at its next request.
type fakeProcs struct {
	sigma.Procs // what roles do not call
	t           *testing.T
	names       func(role string) sigma.Namespace // what procs of a role see
	onSpawn     func(d sigma.Descriptor, n int) sigma.Status
	place       func() (sigma.Namespace, sigma.MachineID) // instead of names: where the next proc runs
	mapper      Mapper
	reducer     Reducer
	memory      sigma.Bytes // that procs are told they have; 0 = what they were given
	room        int         // procs that run at once; 0 = any number
	finished    sync.WaitGroup
	leading     sync.Map     // by path, a chan that holds the leader
	leader      atomic.Value // sigma.ProcID

	registered map[string]sigma.ProcID // mu; "" = none of it runs

	mu    sync.Mutex
	procs map[sigma.ProcID]*fakeProc
	order []sigma.ProcID
	wake  chan struct{} // closed when a place may have become free
	count map[string]int
}

type fakeProc struct {
	info   sigma.ProcInfo
	cancel context.CancelFunc
	start  chan struct{}
	end    chan struct{}
}

func newFakeProcs(t *testing.T, names sigma.Namespace) *fakeProcs {
	f := &fakeProcs{t: t, procs: map[sigma.ProcID]*fakeProc{}, wake: make(chan struct{}), count: map[string]int{},
		registered: map[string]sigma.ProcID{}}
	f.names = func(string) sigma.Namespace { return names }
	f.mapper, f.reducer = Mapper{Map: countWords, Between: NotLetter}, Sum
	t.Cleanup(f.finished.Wait)
	return f
}

func countWords(_ string, text []byte, out *Emitter) error {
	for word := range Words(text) {
		out.Count(word, 1)
	}
	return nil
}

// Register is initd: it starts the proc again while it fails and is registered.
func (f *fakeProcs) Register(ctx context.Context, r sigma.Registration) error {
	if err := r.Check(); err != nil {
		return err
	}
	f.mu.Lock()
	f.registered[r.Name] = ""
	f.mu.Unlock()
	f.finished.Go(func() {
		for {
			ids, err := f.Spawn(ctx, r.Descriptor)
			if err != nil {
				f.t.Error(err)
				return
			}
			f.mu.Lock()
			_, wanted := f.registered[r.Name]
			f.registered[r.Name] = ids[0]
			if !wanted {
				delete(f.registered, r.Name)
				f.procs[ids[0]].cancel()
			}
			f.mu.Unlock()
			s, err := f.WaitExit(context.Background(), ids[0])
			f.mu.Lock()
			_, wanted = f.registered[r.Name]
			f.mu.Unlock()
			if err != nil || s.OK() || !wanted {
				return
			}
		}
	})
	return nil
}

func (f *fakeProcs) Unregister(ctx context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.procs[f.registered[name]]; p != nil {
		p.cancel()
	}
	delete(f.registered, name)
	return nil
}

// lead is an election without leases: the leader's end makes room.
func (f *fakeProcs) lead(ctx context.Context, path, _ string) (sigma.Epoch, <-chan struct{}, error) {
	x, _ := f.leading.LoadOrStore(path, make(chan sigma.Epoch, 1))
	turn := x.(chan sigma.Epoch)
	if _, created := f.leading.LoadOrStore(path+" made", true); !created {
		turn <- 0
	}
	select {
	case epoch := <-turn:
		f.finished.Go(func() {
			<-ctx.Done()
			turn <- epoch + 1
		})
		return epoch + 1, nil, nil
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
}

// client is one of the realm that the procs are of.
func (f *fakeProcs) client() *Client { return &Client{Names: f.names(""), Procs: f, Init: f} }

func (f *fakeProcs) Spawn(_ context.Context, ds ...sigma.Descriptor) ([]sigma.ProcID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []sigma.ProcID
	for _, d := range ds {
		if err := d.Check(); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		id := sigma.NewProcID()
		p := &fakeProc{cancel: cancel, start: make(chan struct{}), end: make(chan struct{})}
		p.info = sigma.ProcInfo{ID: id, Name: d.Name, Args: d.Args, Memory: d.Memory}
		p.info.Times.Spawned = time.Now()
		key := d.Args[0]
		f.count[key]++
		if len(d.Args) > 2 {
			key += d.Args[2]
			f.count[key]++
		}
		n := f.count[key]
		f.procs[id] = p
		f.order = append(f.order, id)
		ids = append(ids, id)
		f.finished.Go(func() { f.run(ctx, p, d, n) })
	}
	return ids, nil
}

func (f *fakeProcs) run(ctx context.Context, p *fakeProc, d sigma.Descriptor, n int) {
	s := sigma.Status{Code: sigma.StatusEvicted, Msg: "killed"}
	if f.admit(ctx, p) {
		close(p.start)
		if f.onSpawn != nil {
			s = f.onSpawn(d, n)
		}
		if f.onSpawn == nil || s.Code == sigma.StatusNone {
			task, err := parseArgs(d.Args)
			if err != nil {
				f.t.Error(err)
			}
			task.Names, task.Procs, task.Init = f.names(d.Args[0]), f, f
			task.Lead = func(ctx context.Context, path, dir string) (sigma.Epoch, <-chan struct{}, error) {
				epoch, lost, err := f.lead(ctx, path, dir)
				if err == nil {
					f.leader.Store(p.info.ID)
				}
				return epoch, lost, err
			}
			task.Attempt, task.Machine, task.Mapper, task.Reducer = string(p.info.ID), "here", f.mapper, f.reducer
			if f.memory != 0 {
				task.Memory = f.memory
			}
			if f.place != nil {
				task.Names, task.Machine = f.place()
			}
			s = task.do(ctx)
		}
		if ctx.Err() != nil {
			s = sigma.Status{Code: sigma.StatusEvicted, Msg: "killed"}
		}
	}
	p.cancel()
	f.mu.Lock()
	p.info.State, p.info.Status = sigma.ProcEnded, s
	close(f.wake)
	f.wake = make(chan struct{})
	f.mu.Unlock()
	close(p.end)
}

// admit waits for a place, as memory admission does.
func (f *fakeProcs) admit(ctx context.Context, p *fakeProc) bool {
	for {
		f.mu.Lock()
		running := 0
		for _, q := range f.procs {
			if q.info.State == sigma.ProcRunning && q.info.Args[0] != RoleCoordinate {
				running++
			}
		}
		if f.room == 0 || running < f.room || p.info.Args[0] == RoleCoordinate {
			p.info.State = sigma.ProcRunning
			p.info.Times.Executed = time.Now()
			f.mu.Unlock()
			return true
		}
		wake := f.wake
		f.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return false
		}
	}
}

func (f *fakeProcs) get(id sigma.ProcID) (*fakeProc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.procs[id]; p != nil {
		return p, nil
	}
	return nil, sigma.PathError("fakeProcs", sigma.KindNotFound, string(id))
}

func (f *fakeProcs) WaitStart(ctx context.Context, id sigma.ProcID) error {
	p, err := f.get(id)
	if err != nil {
		return err
	}
	select {
	case <-p.start:
		return nil
	case <-p.end:
		select {
		case <-p.start:
			return nil
		default:
		}
		return sigma.Errorf("fakeProcs", sigma.KindOther, "did not start")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeProcs) WaitExit(ctx context.Context, id sigma.ProcID) (sigma.Status, error) {
	p, err := f.get(id)
	if err != nil {
		return sigma.Status{}, err
	}
	select {
	case <-p.end:
		return p.info.Status, nil
	case <-ctx.Done():
		return sigma.Status{}, ctx.Err()
	}
}

func (f *fakeProcs) Evict(ctx context.Context, id sigma.ProcID, _ time.Duration) error {
	return f.Kill(ctx, id)
}

func (f *fakeProcs) Kill(_ context.Context, id sigma.ProcID) error {
	p, err := f.get(id)
	if err == nil {
		p.cancel()
	}
	return err
}

func (f *fakeProcs) List(_ context.Context, all bool) ([]sigma.ProcInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []sigma.ProcInfo
	for _, id := range f.order {
		if p := f.procs[id]; all || p.info.State != sigma.ProcEnded {
			out = append(out, p.info)
		}
	}
	return out, nil
}

func (f *fakeProcs) spawns(key string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count[key]
}

// realm is a tree in memory with a machine's scratch directory, as a realm has.
func realm(t testing.TB) *resolve.Tree {
	tree := memfs.New(memfs.Config{SizeMax: 256 * sigma.MiB})
	t.Cleanup(tree.Close)
	root, err := tree.Attach(t.Context(), sigma.Principal{}, "")
	if err != nil {
		t.Fatal(err)
	}
	names := resolve.New(resolve.Config{Root: root, Machine: "here"})
	if err := names.MkdirAll(t.Context(), "/ux/here", 0o777); err != nil {
		t.Fatal(err)
	}
	return names
}

func testJob(maps, reduces int) Job {
	return Job{Input: "/in", Output: "/out", Maps: maps, Reduces: reduces, Cores: 2, Program: "/bin/mr"}
}

func TestWordCount(t *testing.T) {
	for _, size := range []struct{ maps, reduces int }{{1, 1}, {4, 3}, {16, 2}, {0, 0}} {
		t.Run(fmt.Sprintf("%d maps %d reduces", size.maps, size.reduces), func(t *testing.T) {
			names := realm(t)
			want := fillSome(t, names)
			procs := newFakeProcs(t, names)
			var last Progress
			c := Client{Names: names, Procs: procs, Init: procs, Progress: func(p Progress) { last = p }}
			s, err := c.Run(t.Context(), "job", testJob(size.maps, size.reduces))
			if err != nil {
				t.Fatal(err)
			}
			checkOutput(t, names, want)
			if s.Files != int64(len(someTexts())) || s.Keys != int64(len(want)) || size.maps > 0 &&
				s.Maps != int64(size.maps) || s.MapsRun != s.Maps || s.Leaders != 1 {
				t.Errorf("summary %+v", s)
			}
			if last.BytesDone != s.Bytes || last.ReducesDone != s.Reduces {
				t.Errorf("last progress %+v", last)
			}
			if len(s.Machines) != 1 || s.Machines[0] != (Work{"here", s.Maps, s.Bytes, s.Reduces, s.Records}) {
				t.Errorf("who worked: %+v", s.Machines)
			}
			if left, err := names.ReadDir(t.Context(), "/ux/here/mr"); err != nil || len(left) > 0 {
				t.Errorf("left in scratch: %v %v", left, err)
			}
			if left, err := names.ReadDir(t.Context(), "/mr"); err != nil || len(left) > 0 {
				t.Errorf("left of the job's record: %v %v", left, err)
			}
		})
	}
}

// TestMapFails lets the first two attempts of every map, and the first of every reduce, end badly.
func TestMapFails(t *testing.T) {
	names := realm(t)
	want := fillSome(t, names)
	procs := newFakeProcs(t, names)
	procs.onSpawn = func(d sigma.Descriptor, n int) sigma.Status {
		if d.Args[0] == RoleMap && n <= 2 || d.Args[0] == RoleReduce && n == 1 {
			return sigma.Status{Code: sigma.StatusCrashed, Msg: "killed by signal 9"}
		}
		return sigma.Status{}
	}
	c := Client{Names: names, Procs: procs, Init: procs}
	s, err := c.Run(t.Context(), "job", testJob(3, 2))
	if err != nil {
		t.Fatal(err)
	}
	checkOutput(t, names, want)
	if s.MapsRun != 9 {
		t.Errorf("%d maps run, want 9", s.MapsRun)
	}
}

// TestMapFailsForGood wants the last proc's message.
func TestMapFailsForGood(t *testing.T) {
	names := realm(t)
	fillSome(t, names)
	procs := newFakeProcs(t, names)
	procs.onSpawn = func(d sigma.Descriptor, n int) sigma.Status {
		if d.Args[0] == RoleMap && d.Args[2] == "1" {
			return sigma.Status{Code: sigma.StatusError, Msg: "disk on fire"}
		}
		return sigma.Status{}
	}
	c := Client{Names: names, Procs: procs, Init: procs}
	_, err := c.Run(t.Context(), "job", testJob(3, 2))
	if err == nil || !strings.Contains(err.Error(), "disk on fire") || !strings.Contains(err.Error(), "map 1") ||
		procs.spawns("map1") != AttemptsMax {
		t.Fatalf("got %v after %d attempts", err, procs.spawns("map1"))
	}
	if left, err := names.ReadDir(t.Context(), "/mr"); err != nil || len(left) > 0 {
		t.Errorf("left of the job's record: %v %v", left, err)
	}
}

// TestCoordinatorKilled kills the leader and another coordinator after one map has finished; that
// map must not run again.
func TestCoordinatorKilled(t *testing.T) {
	names := realm(t)
	want := fillSome(t, names)
	procs := newFakeProcs(t, names)
	release := make(chan struct{})
	kill := sync.OnceFunc(func() {
		defer close(release)
		names.WaitFor(context.Background(), "/mr/job/out/m-00000")
		leader := procs.leader.Load().(sigma.ProcID)
		list, _ := procs.List(context.Background(), false)
		other := slices.IndexFunc(list, func(p sigma.ProcInfo) bool {
			return p.Args[0] == RoleCoordinate && p.ID != leader
		})
		for _, id := range []sigma.ProcID{leader, list[other].ID} {
			procs.Kill(context.Background(), id)
			procs.WaitExit(context.Background(), id)
		}
	})
	procs.onSpawn = func(d sigma.Descriptor, n int) sigma.Status {
		if d.Args[0] == RoleMap && d.Args[2] != "0" {
			go kill()
			<-release
		}
		return sigma.Status{}
	}
	s, err := procs.client().Run(t.Context(), "job", testJob(4, 2))
	if err != nil {
		t.Fatal(err)
	}
	checkOutput(t, names, want)
	// the other one may have begun to lead before it was killed
	if procs.spawns("map0") != 1 || s.Leaders < 2 || s.Leaders > 3 || s.MapsRun > 7 {
		t.Errorf("map 0 ran %d times; %+v", procs.spawns("map0"), s)
	}
	procs.checkUnregistered(t)
}

func (f *fakeProcs) checkUnregistered(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.registered) > 0 {
		t.Errorf("still registered: %v", f.registered)
	}
}

// loses is a realm in which the first intermediate files of one map vanish when they have been
// published.
type loses struct {
	sigma.Namespace
	mu   sync.Mutex
	once bool
}

func (l *loses) ReadLink(ctx context.Context, path string) (string, error) {
	target, err := l.Namespace.ReadLink(ctx, path)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && strings.HasSuffix(path, "m-00001") && !l.once {
		l.once = true
		l.RemoveAll(ctx, target)
	}
	return target, err
}

// TestIntermediateLost wants the map, and only that, to be repeated.
func TestIntermediateLost(t *testing.T) {
	names := realm(t)
	want := fillSome(t, names)
	procs := newFakeProcs(t, names)
	lossy := &loses{Namespace: names}
	procs.names = func(role string) sigma.Namespace {
		if role == RoleReduce {
			return lossy
		}
		return names
	}
	c := Client{Names: names, Procs: procs, Init: procs}
	s, err := c.Run(t.Context(), "job", testJob(3, 3))
	if err != nil {
		t.Fatal(err)
	}
	checkOutput(t, names, want)
	if s.MapsRun != 4 || procs.spawns("map1") != 2 {
		t.Errorf("%d maps run, want 4: %+v", s.MapsRun, s)
	}
}

// TestMachines spreads a job over three machines, of which one is lost when all maps are done. Its
// maps, and no others, are repeated, all at once; and nothing is left on the others.
func TestMachines(t *testing.T) {
	names := realm(t)
	want := fillSome(t, names)
	procs := newFakeProcs(t, names)
	var mu sync.Mutex
	var views []*resolve.Tree
	alive := []sigma.MachineID{"m1", "m2", "m3"}
	root, err := names.Handle(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range alive {
		views = append(views, resolve.New(resolve.Config{Root: root, Machine: m}))
		if err := names.MkdirAll(t.Context(), "/ux/"+string(m), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	next, lost, before := 0, false, 0
	procs.place = func() (sigma.Namespace, sigma.MachineID) {
		mu.Lock()
		defer mu.Unlock()
		if next++; lost && next%3 == 1 {
			next++
		}
		return views[next%3], alive[next%3]
	}
	lose := sync.OnceFunc(func() {
		for i := range 12 {
			if err := names.WaitFor(t.Context(), jobDir("/mr/job").out(i)); err != nil {
				t.Error(err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		on, _ := names.ReadDir(t.Context(), "/ux/m2/mr/job")
		lost, before = true, len(on)
		if err := names.RemoveAll(t.Context(), "/ux/m2"); err != nil {
			t.Error(err)
		}
	})
	procs.onSpawn = func(d sigma.Descriptor, _ int) sigma.Status {
		if d.Args[0] == RoleReduce {
			lose()
		}
		return sigma.Status{}
	}
	s, err := (&Client{Names: names, Procs: procs, Init: procs}).Run(t.Context(), "job", testJob(12, 3))
	if err != nil {
		t.Fatal(err)
	}
	checkOutput(t, names, want)
	if before == 0 || s.MapsRun != s.Maps+int64(before) || len(s.Machines) != 2 ||
		s.Machines[0].Bytes+s.Machines[1].Bytes != s.Bytes || procs.spawns("reduce0") > 2 {
		t.Errorf("%d maps were on the machine that was lost: %+v; reduce 0 ran %d times", before, s,
			procs.spawns("reduce0"))
	}
	for _, m := range s.Machines {
		if left, err := names.ReadDir(t.Context(), "/ux/"+string(m.Machine)+"/mr"); err != nil || len(left) > 0 {
			t.Errorf("left on %s: %v %v", m.Machine, left, err)
		}
	}
}

// TestCores adds up what the machines offer that take new procs.
func TestCores(t *testing.T) {
	names := realm(t)
	if n := Cores(t.Context(), names, 7); n != 7 {
		t.Errorf("without a list: %d", n)
	}
	if err := names.Mkdir(t.Context(), "/sys", 0o755); err != nil {
		t.Fatal(err)
	}
	const list = "m1 alive cpu=1500 memory=5 control\nm2 lost cpu=1000 memory=5\nm3 alive cpu=2000 memory=5 cordoned\nm4 alive cpu=600 memory=1 label.cpu=9 label.zone=a\nm5 alive\n"
	if _, err := names.Put(t.Context(), "/sys/roster", []byte(list), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := Cores(t.Context(), names, 7); n != 3 {
		t.Errorf("got %d, want 3", n)
	}
}

// TestNoRoom has place for one proc beside the coordinator, and a map that has to be repeated when
// a reducer holds it.
func TestNoRoom(t *testing.T) {
	names := realm(t)
	want := fillSome(t, names)
	procs := newFakeProcs(t, names)
	procs.room = 1
	lossy := &loses{Namespace: names}
	procs.names = func(role string) sigma.Namespace {
		if role == RoleReduce {
			return lossy
		}
		return names
	}
	c := Client{Names: names, Procs: procs, Init: procs}
	if _, err := c.Run(t.Context(), "job", testJob(3, 3)); err != nil {
		t.Fatal(err)
	}
	checkOutput(t, names, want)
}

// TestInterrupt wants all procs gone and nothing left when the caller gives up.
func TestInterrupt(t *testing.T) {
	names := realm(t)
	fillSome(t, names)
	procs := newFakeProcs(t, names)
	ctx, cancel := context.WithCancel(t.Context())
	procs.onSpawn = func(d sigma.Descriptor, n int) sigma.Status {
		if d.Args[0] == RoleMap {
			cancel()
			<-procs.procs[procs.order[0]].end // the coordinator is killed first
		}
		return sigma.Status{}
	}
	c := Client{Names: names, Procs: procs, Init: procs}
	if _, err := c.Run(ctx, "job", testJob(3, 2)); sigma.KindOf(err) != sigma.KindCanceled {
		t.Fatal(err)
	}
	if left, _ := procs.List(t.Context(), false); len(left) > 0 {
		t.Errorf("%d procs are left", len(left))
	}
	if left, err := names.ReadDir(t.Context(), "/mr"); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
	if _, err := names.Stat(t.Context(), "/out"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("the output directory is left: %v", err)
	}
}

func TestBadJobs(t *testing.T) {
	names := realm(t)
	fill(t, names, map[string][]byte{"a": []byte("a b")})
	names.MkdirAll(t.Context(), "/full", 0o755)
	names.Put(t.Context(), "/full/x", nil, sigma.PutOptions{})
	procs := newFakeProcs(t, names)
	c := Client{Names: names, Procs: procs, Init: procs}
	for name, test := range map[string]struct {
		change func(*Job)
		kind   sigma.Kind
	}{
		"no input":        {func(j *Job) { j.Input = "/nowhere" }, sigma.KindNotFound},
		"relative input":  {func(j *Job) { j.Input = "in" }, sigma.KindInvalid},
		"full output":     {func(j *Job) { j.Output = "/full" }, sigma.KindNotEmpty},
		"output is file":  {func(j *Job) { j.Output = "/full/x" }, sigma.KindNotDir},
		"negative maps":   {func(j *Job) { j.Maps = -1 }, sigma.KindInvalid},
		"too many maps":   {func(j *Job) { j.Maps = MapsMax + 1 }, sigma.KindInvalid},
		"too many reduce": {func(j *Job) { j.Reduces = ReducesMax + 1 }, sigma.KindInvalid},
	} {
		job := testJob(1, 1)
		test.change(&job)
		if _, err := c.Run(t.Context(), "bad", job); sigma.KindOf(err) != test.kind || err == nil {
			t.Errorf("%s: got %v (%v), want %v", name, err, sigma.KindOf(err), test.kind)
		}
	}
	if procs.spawns(RoleCoordinate) > 0 {
		t.Error("a bad job was started")
	}
}

func TestEmptyInput(t *testing.T) {
	names := realm(t)
	fill(t, names, map[string][]byte{"empty": nil})
	names.Remove(t.Context(), "/in/empty")
	c := newFakeProcs(t, names).client()
	s, err := c.Run(t.Context(), "job", testJob(0, 0))
	if err != nil || s.Files != 0 || s.Keys != 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	if got := output(t, names); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// unreadable is a realm in which one input file may not be read.
type unreadable struct{ sigma.Namespace }

func (u unreadable) Get(ctx context.Context, path string) ([]byte, sigma.FileID, error) {
	if path == "/in/one" {
		return nil, sigma.FileID{}, sigma.PathError("test", sigma.KindPermission, path)
	}
	return u.Namespace.Get(ctx, path)
}

func TestUnreadableInput(t *testing.T) {
	names := realm(t)
	fillSome(t, names)
	procs := newFakeProcs(t, unreadable{names})
	c := Client{Names: names, Procs: procs, Init: procs}
	_, err := c.Run(t.Context(), "job", testJob(2, 2))
	if sigma.KindOf(err) != sigma.KindPermission || !strings.Contains(err.Error(), "/in/one") {
		t.Fatalf("got %v", err)
	}
	if n := procs.spawns(RoleMap); n > 2 {
		t.Errorf("%d maps were tried, want 2: another attempt would meet the same", n)
	}
}

func TestBins(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		l := listing{}
		for i := range r.IntN(40) {
			size := r.Int64N(1 << uint(1+r.IntN(26)))
			l.add(fmt.Sprintf("/in/d%d/f%03d", r.IntN(3), i), size*r.Int64N(2))
		}
		n := 1 + r.IntN(20)
		bins := cut(&l, n)
		if len(bins) > n || len(bins) == 0 && len(l.files) > 0 {
			t.Fatalf("%d bins, want 1 to %d", len(bins), n)
		}
		var all []split
		for _, b := range bins {
			got, err := decodeBin(encodeBin(b))
			if err != nil || !slices.Equal(got, b) {
				t.Fatalf("got %v, %v, want %v", got, err, b)
			}
			all = append(all, b...)
		}
		// The splits are the files, in order, without a gap.
		i, at := 0, int64(0)
		for _, s := range all {
			f := l.files[i]
			if s.path != f.path || s.from != at || s.to < s.from || s.to > f.size {
				t.Fatalf("split %+v, want from %d of %+v", s, at, f)
			}
			if at = s.to; at == f.size {
				i, at = i+1, 0
			}
		}
		if i != len(l.files) {
			t.Fatalf("%d of %d files", i, len(l.files))
		}
	}
}
