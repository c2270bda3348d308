package member

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// alone runs the only member of a store.
func alone(t testing.TB, dir string) (m *Member, stop func()) {
	t.Helper()
	return aloneWith(t, Config{Dir: dir})
}

func aloneWith(t testing.TB, cfg Config) (m *Member, stop func()) {
	t.Helper()
	cfg.Log = slog.New(slog.NewTextHandler(logWriter{t}, nil))
	cfg.Machine = "m1"
	cfg.Succeed = func(record []byte) ([]byte, error) { return append(record, ", restored"...), nil }
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- m.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-ran; err != nil {
				t.Error(err)
			}
			m.Close()
		}
	}
	t.Cleanup(stop)
	return m, stop
}

// memberRoot makes the realm of the tests at a member and returns its root.
func memberRoot(t testing.TB, m *Member) file {
	t.Helper()
	if err := ask(t, m, sigmap.CallCreateRealm.Name, realmArg(testRealm), nil); err != nil {
		t.Fatal(err)
	}
	f, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
	if err != nil {
		t.Fatal(err)
	}
	return f.(file)
}

var provider = sigma.Principal{Realm: sigma.SystemRealm, Machine: "m1", System: true}

// ask calls a method of the file that the provider gets.
func ask(t testing.TB, m *Member, method string, encode, decode func(*sigmap.Coder)) error {
	t.Helper()
	f, err := m.Attach(t.Context(), provider, "")
	if err != nil {
		return err
	}
	return askFile(t.Context(), f, method, encode, decode)
}

func askFile(ctx context.Context, f sigma.File, method string, encode, decode func(*sigmap.Coder)) error {
	var payload []byte
	if encode != nil {
		var err error
		if payload, err = sigmap.Payload(encode); err != nil {
			return err
		}
	}
	reply, _, err := f.(sigma.Caller).Call(ctx, method, payload, nil)
	if err != nil || decode == nil {
		return err
	}
	return sigmap.Parse(reply, decode)
}

func realmArg(r sigma.RealmID) func(*sigmap.Coder) { return func(c *sigmap.Coder) { c.RealmID(&r) } }

func textOf(s *string) func(*sigmap.Coder) { return func(c *sigmap.Coder) { c.Str(s) } }

func machineArg(m sigma.MachineID) func(*sigmap.Coder) {
	return func(c *sigmap.Coder) { c.MachineID(&m) }
}

// A member alone needs no listener, leads at once and again after a restart, and works on a store
// of an earlier version.
func TestMemberAlone(t *testing.T) {
	dir := t.TempDir()
	s, stop := serve(t, Config{Dir: dir}) // as it was before there were members
	put(t, attach(t, s), "old", "1")
	stop()
	for range 2 {
		m, stop := alone(t, dir)
		f, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := get(t, f.(file), "old"); got != "1" {
			t.Errorf("got %q", got)
		}
		var ms []sigmap.NamesMember
		if err := ask(t, m, sigmap.CallMembers.Name, nil, func(c *sigmap.Coder) {
			c.NamesMembers(&ms)
		}); err != nil || len(ms) != 1 || ms[0] != (sigmap.NamesMember{Machine: "m1", Started: true, Leads: true}) {
			t.Errorf("members: %+v, %v", ms, err)
		}
		wantKind(t, ask(t, m, sigmap.CallMemberRemove.Name, machineArg("m1"), nil), sigma.KindInvalid)
		wantKind(t, ask(t, m, sigmap.CallMemberAdd.Name, machineArg("m2"), nil), sigma.KindUnsupported)
		stop()
		_, err = f.Stat(t.Context())
		wantKind(t, err, sigma.KindUnavailable)
	}
}

// An expelled machine's sessions and leases end, it is refused, also after a restart, until it is
// admitted.
func TestExpel(t *testing.T) {
	dir := t.TempDir()
	m, stop := alone(t, dir)
	if err := ask(t, m, sigmap.CallCreateRealm.Name, realmArg(testRealm), nil); err != nil {
		t.Fatal(err)
	}
	sessions := map[sigma.MachineID]context.Context{}
	for _, machine := range []sigma.MachineID{"m2", "m3"} {
		p := sigma.Principal{Realm: testRealm, Machine: machine}
		ctx, done, err := m.Session(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		sessions[machine] = ctx
		go func() { <-ctx.Done(); done() }()
		f, err := m.Attach(t.Context(), p, "")
		if err != nil {
			t.Fatal(err)
		}
		lease, err := f.(file).Lease(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.(file).Put(t.Context(), []string{"of-" + string(machine)}, nil,
			sigma.PutOptions{Lease: lease}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(t, m, sigmap.CallExpel.Name, machineArg("m2"), nil); err != nil {
		t.Fatal(err)
	}
	if sessions["m2"].Err() == nil || sessions["m3"].Err() != nil {
		t.Errorf("sessions after the expulsion: %v, %v", sessions["m2"].Err(), sessions["m3"].Err())
	}
	check := func(m *Member) {
		t.Helper()
		_, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm, Machine: "m2"}, "")
		wantKind(t, err, sigma.KindStale)
		_, _, err = m.Session(t.Context(), sigma.Principal{Realm: testRealm, Machine: "m2"})
		wantKind(t, err, sigma.KindStale)
		f, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm, Machine: "m3"}, "")
		if err != nil {
			t.Fatal(err)
		}
		if names := list(t, f.(file), 10); len(names) != 1 || names[0] != "of-m3" {
			t.Errorf("the realm has %q", names)
		}
	}
	check(m)
	stop()
	m, stop = alone(t, dir)
	if _, err := m.leading(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(m)
	if err := ask(t, m, sigmap.CallExpel.Name, machineArg("m3"),
		nil); err != nil { // whose realm is loaded, with leases of the time before
		t.Fatal(err)
	}
	for range 2 {
		for _, machine := range []sigma.MachineID{"m2", "m3"} {
			if err := ask(t, m, sigmap.CallAdmit.Name, machineArg(machine), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	f, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm, Machine: "m2"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if names := list(t, f.(file), 10); len(names) != 0 {
		t.Errorf("the realm has %q", names)
	}
	stop()
}

// snapshotOf reads a whole snapshot as sigma does.
func snapshotOf(ctx context.Context, root sigma.File) ([]byte, error) {
	var number, keys uint64
	if err := askFile(ctx, root, sigmap.CallSnapshotOpen.Name, nil, func(c *sigmap.Coder) {
		c.U64(&number)
		c.U64(&keys)
	}); err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for {
		offset := uint64(all.Len())
		var piece []byte
		if err := askFile(ctx, root, sigmap.CallSnapshotRead.Name, func(c *sigmap.Coder) {
			c.U64(&number)
			c.U64(&offset)
		}, func(c *sigmap.Coder) { c.Data(&piece) }); err != nil {
			return nil, err
		}
		if len(piece) == 0 {
			return all.Bytes(), askFile(ctx, root, sigmap.CallSnapshotClose.Name, func(c *sigmap.Coder) {
				c.U64(&number)
			}, nil)
		}
		all.Write(piece)
	}
}

// A snapshot is restored to the same tree; one that is damaged anywhere, or cut, is refused; a
// store that is there is not touched.
func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	m, stop := alone(t, dir)
	if err := ask(t, m, sigmap.CallCreateRealm.Name, realmArg(testRealm), nil); err != nil {
		t.Fatal(err)
	}
	f, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(t, m, sigmap.CallCreateRealm.Name, func(c *sigmap.Coder) {
		r := sigma.RealmID(sigma.SystemRealm)
		c.RealmID(&r)
	}, nil); err != nil {
		t.Fatal(err)
	}
	system, err := m.Attach(t.Context(), sigma.Principal{Realm: sigma.SystemRealm}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := system.Mkdir(t.Context(), "machines", 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, walk(t, system.(file), "machines"), "state", "m1")
	big := bytes.Repeat([]byte("names "), 30_000)
	put(t, f.(file), "a", "1")
	put(t, f.(file), "big", string(big))
	root, err := m.Attach(t.Context(), provider, "")
	if err != nil {
		t.Fatal(err)
	}
	text, err := snapshotOf(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	put(t, f.(file), "later", "2")
	if _, err := Restore(t.Context(), Config{Dir: dir}, bytes.NewReader(text),
		nil); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("restored over a running store: %v", err)
	}
	stop()
	_, err = Restore(t.Context(), Config{Dir: dir}, bytes.NewReader(text), nil)
	wantKind(t, err, sigma.KindExists)
	for i := 0; i < len(text); i += 1 + len(text)/40 {
		damaged := bytes.Clone(text)
		damaged[i] ^= 1
		_, err := CheckSnapshot(bytes.NewReader(damaged))
		wantKind(t, err, sigma.KindInvalid)
		_, err = CheckSnapshot(bytes.NewReader(text[:i]))
		wantKind(t, err, sigma.KindInvalid)
	}
	_, err = CheckSnapshot(bytes.NewReader(append(bytes.Clone(text), 0)))
	wantKind(t, err, sigma.KindInvalid)
	// A start finds a snapshot in the directory: over the store that is there, and, as another
	// system, in an empty one.
	for _, c := range []struct {
		dir, name string
		machines  bool
	}{{dir, RestoreName, true}, {t.TempDir(), RestoreFreshName, false}} {
		if err := os.WriteFile(filepath.Join(c.dir, c.name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			m, stop := alone(t, c.dir)
			f, err = m.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
			if err != nil {
				t.Fatal(err)
			}
			if names := list(t, f.(file), 10); len(names) != 2 || get(t, f.(file), "a") != "1" ||
				get(t, f.(file), "big") != string(big) {
				t.Errorf("restored: %q", names)
			}
			f, err = m.Attach(t.Context(), sigma.Principal{Realm: sigma.SystemRealm}, "")
			if err != nil {
				t.Fatal(err)
			}
			dir := walk(t, f.(file), "machines")
			if names := list(t, dir, 10); len(names) == 1 != c.machines || c.machines &&
				get(t, dir, "state") != "m1, restored" {
				t.Errorf("%s: the record of the machines: %q", c.name, names)
			}
			stop()
		}
	}
}

// When a member takes the lead, and when not.
func TestWatcher(t *testing.T) {
	timing := DefaultTiming()
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	other := term{number: 1, machine: "m1", at: 5, beat: 6}
	for _, c := range []struct {
		what string
		o    outlook // of later
		ms   int
		want bool
	}{
		{"within its lease", outlook{term: other, raftLeader: 1, first: true}, 1000, false},
		{"silent", outlook{term: other, raftLeader: 1, first: true}, 1200, true},
		{"silent, but others are nearer", outlook{term: other, raftLeader: 1}, 1200, false},
		{"silent for all", outlook{term: other, raftLeader: 1}, 1400, true},
		{"slow", outlook{term: other, raftLeader: 1, first: true, heard: at(1100)}, 1200, false},
		{"too slow", outlook{term: other, raftLeader: 1, first: true, heard: at(6000)}, 6100, true},
		{"it beats", outlook{term: term{number: 1, machine: "m1", at: 5, beat: 7}, raftLeader: 1, first: true}, 1600,
			false},
		{"no leader of the members", outlook{term: other}, 1600, false},
		{"a new leader of the members", outlook{term: other, raftLeader: 2, first: true}, 1600, false},
		{"nobody else is there", outlook{term: other, raftLeader: 1, alone: true}, 10, true},
		{"a learner", outlook{term: other, raftLeader: 1, learner: true}, 9000, false},
		{"one that has resigned", outlook{term: term{number: 1, at: 9, beat: 6}, raftLeader: 1, abstains: true}, 9000,
			false},
		{"resigned", outlook{term: term{number: 1, at: 9, beat: 6}, raftLeader: 1, first: true}, 10, true},
		{"resigned, but others are nearer", outlook{term: term{number: 1, at: 9, beat: 6}, raftLeader: 1}, 10, false},
		{"oneself before", outlook{term: term{number: 1, machine: "m2", at: 9, beat: 6}, raftLeader: 1}, 10, true},
	} {
		w := watcher{timing: timing, self: "m2"}
		if w.due(outlook{now: at(0), term: other, raftLeader: 1, first: true}) {
			t.Errorf("%s: at once", c.what)
		}
		c.o.now = at(c.ms)
		if got := w.due(c.o); got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
	}
}

// What being a member costs when there is no other: to be compared with BenchmarkEtcdPut and
// BenchmarkGet.
func BenchmarkMemberAlone(b *testing.B) {
	m, stop := alone(b, b.TempDir())
	defer stop()
	if err := ask(b, m, sigmap.CallCreateRealm.Name, realmArg(testRealm), nil); err != nil {
		b.Fatal(err)
	}
	f, err := m.Attach(b.Context(), sigma.Principal{Realm: testRealm}, "")
	if err != nil {
		b.Fatal(err)
	}
	data, names := make([]byte, 100), []string{"a"}
	b.Run("put", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := f.(file).Put(context.Background(), names, data, sigma.PutOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := f.(file).Get(context.Background(), names, 0, 100); err != nil {
				b.Fatal(err)
			}
		}
	})
}
